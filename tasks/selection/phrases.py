"""The words of the sample task: what a persona states, what the partner tells, and small talk.

A value has a `plain` form ("two dogs") and a `hint` that means the same in other words ("they bark whenever the
mailman comes"), so that matching words is not enough to find the right reply. Within a topic no two values mean the
same, and no sentence of one topic answers the question of another: that is what makes exactly one candidate right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["OPENERS", "PERSONA", "TALK", "TOLD", "PersonaTopic", "TalkTopic", "ToldTopic", "Value"]


class Value(NamedTuple):
    plain: str
    hint: str = ""

    def fill(self, template: str) -> str:
        return template.format(plain=self.plain, hint=self.hint)


def _values(table: str) -> tuple[Value, ...]:
    """One value a line, `plain = hint`; or words alone, separated by commas, for values without hints."""
    if "=" not in table:
        return tuple(Value(plain.strip()) for plain in table.split(","))
    return tuple(Value(*(part.strip() for part in line.split("="))) for line in table.strip().splitlines())


@dataclass(frozen=True)
class PersonaTopic:
    """Something that a persona line states and the partner may ask about."""

    name: str
    facts: tuple[str, ...]
    questions: tuple[str, ...]
    answers: tuple[str, ...]
    values: tuple[Value, ...]


@dataclass(frozen=True)
class ToldTopic:
    """Something that the partner tells, and may ask for again some turns later."""

    name: str
    statements: tuple[str, ...]
    acknowledgements: tuple[str, ...]
    questions: tuple[str, ...]
    recalls: tuple[str, ...]
    values: tuple[Value, ...]


@dataclass(frozen=True)
class TalkTopic:
    """Small talk whose reply depends on the last utterance alone."""

    prompts: tuple[str, ...]
    replies: tuple[str, ...]


OPENERS = ("", "", "well ,", "oh ,", "hmm ,")

PLACES = _values("""
    paris = the eiffel tower
    london = big ben
    rome = the colosseum
    new york = the statue of liberty
    tokyo = mount fuji
    sydney = the opera house
    cairo = the pyramids
    venice = the canals
""")

PERSONA = (
    PersonaTopic(
        name="pet",
        facts=("i have {plain} .", "at home i keep {plain} ."),
        questions=("do you have any pets ?", "is there an animal in your home ?", "any furry friends at your place ?"),
        answers=("i have {plain}", "i share my home with {plain}", "{plain} , since last year", "{hint}"),
        values=_values("""
            two dogs = they bark whenever the mailman comes
            a cat = she purrs on the sofa all day
            a parrot = he repeats every word that i say
            a goldfish = it swims in a round bowl by my bed
            a pony = i saddle her up every morning
            a rabbit = he eats carrots out of my hand
        """),
    ),
    PersonaTopic(
        name="job",
        facts=("i work as {plain} .", "i am {plain} by trade ."),
        questions=("what do you do for a living ?", "what is your job ?", "how do you earn your money ?"),
        answers=("i am {plain}", "i earn my money as {plain}", "i have been {plain} for years", "{hint}"),
        values=_values("""
            a nurse = i look after the sick in a hospital
            a teacher = i stand in front of a classroom of children
            a baker = i get up at three to make bread
            a lawyer = i argue cases in court
            a farmer = i plow fields and milk cows
            a pilot = i fly planes across the ocean
        """),
    ),
    PersonaTopic(
        name="home",
        facts=("i live in {plain} .", "my apartment is in {plain} ."),
        questions=("where do you live ?", "which city do you call home ?", "whereabouts are you ?"),
        answers=("i live in {plain}", "{plain} is my home", "i am in {plain}", "i can see {hint} from my window"),
        values=PLACES[:6],
    ),
    PersonaTopic(
        name="food",
        facts=("my favorite food is {plain} .", "i could eat {plain} every day ."),
        questions=("what is your favorite food ?", "what do you love to eat ?", "what should i cook if you visit ?"),
        answers=("{plain} is the best", "i love {plain}", "nothing beats {plain}", "{hint}"),
        values=_values("""
            pizza = a round crust with melted cheese
            sushi = raw fish on sticky rice
            spaghetti = long noodles with tomato sauce
            burgers = a bun with a patty and ketchup
            salad = a big bowl of green leaves
            pancakes = a stack of them with maple syrup
        """),
    ),
    PersonaTopic(
        name="color",
        facts=("my favorite color is {plain} .", "everything in my closet is {plain} ."),
        questions=(
            "what is your favorite color ?",
            "which color do you like best ?",
            "which color would you pick for a car ?",
        ),
        answers=("i like {plain}", "{plain} is my color", "{plain} looks good", "the shade of {hint}"),
        values=_values("""
            blue = the sky
            green = fresh grass
            red = a fire truck
            yellow = a ripe lemon
            black = the night
            white = snow
        """),
    ),
    PersonaTopic(
        name="hobby",
        facts=("my hobby is {plain} .", "i spend my free time on {plain} ."),
        questions=("do you have any hobbies ?", "what is your hobby ?", "tell me about your favorite pastime ."),
        answers=("{plain} is my thing", "i am into {plain}", "i am good at {plain}", "{hint}"),
        values=_values("""
            painting = i put landscapes on canvas
            fishing = i sit by the river with a rod
            knitting = i make scarves out of wool
            chess = i think about kings and pawns
            hiking = i walk up mountains with a backpack
            dancing = i practice tango steps
        """),
    ),
)

TOLD = (
    ToldTopic(
        name="name",
        statements=("my name is {plain} .", "i am {plain} , by the way .", "everyone calls me {plain} ."),
        acknowledgements=("nice to meet you , {plain}", "hello {plain}", "what a pretty name , {plain}"),
        questions=("do you remember my name ?", "what was i called again ?", "who am i ?"),
        recalls=("you are {plain}", "{plain} , of course", "you said {plain}"),
        values=_values("anna, tom, maria, jack, susan, peter, emma, david"),
    ),
    ToldTopic(
        name="trip",
        statements=("i am flying to {plain} next week .", "my vacation in {plain} starts soon ."),
        acknowledgements=("enjoy your stay in {plain}", "send me a postcard of {hint}", "take a picture of {hint}"),
        questions=("where did i say i am going ?", "do you remember my travel plans ?", "where is my vacation ?"),
        recalls=("you are going to {plain}", "you will travel to {plain}", "you will visit {hint}"),
        values=PLACES,
    ),
    ToldTopic(
        name="dinner",
        statements=("i am making {plain} tonight .", "there will be {plain} for dinner here ."),
        acknowledgements=(
            "save me a plate of {plain}",
            "{plain} for dinner sounds tasty",
            "{plain} takes a while to make",
        ),
        questions=("do you recall what is for dinner ?", "what did i say i am making ?", "so what is in my oven ?"),
        recalls=("you are making {plain}", "{plain} , you said", "it was {plain}"),
        values=_values("lasagna, meatloaf, chili, dumplings, roast duck, paella, stew, omelets"),
    ),
    ToldTopic(
        name="visit",
        statements=("my {plain} is coming to visit .", "i am picking up my {plain} at the airport ."),
        acknowledgements=("say hi to your {plain}", "it is nice that your {plain} comes", "hug your {plain} for me"),
        questions=("who did i say is coming ?", "do you remember who will visit me ?", "who is my guest again ?"),
        recalls=("your {plain} is coming", "it is your {plain}", "your {plain} , right"),
        values=_values("uncle, aunt, grandmother, cousin, niece, nephew, godfather, boss"),
    ),
)


def _talk(prompts: str, replies: str) -> TalkTopic:
    return TalkTopic(tuple(prompts.split(" | ")), tuple(replies.split(" | ")))


TALK = (
    _talk(
        "hi , how are you today ? | hello ! how is it going ? | hey there , are you well ?",
        "i am doing great | i am fine , thanks for asking | not too bad at all | i feel wonderful",
    ),
    _talk(
        "it is pouring outside . | the rain will not stop here . | i got soaked on my way back .",
        "do not forget your umbrella | my boots would be wet too | good weather for ducks",
    ),
    _talk(
        "it is so hot here today . | this heat wave is killing me . | i am sweating all day .",
        "stay in the shade | turn on the air conditioning | a fan would help you",
    ),
    _talk(
        "we have a blizzard here . | it snowed all night . | everything is covered in ice .",
        "time to build a snowman | put on your mittens | get the shovel and clear the path",
    ),
    _talk(
        "i have to go now . | it is late , good night ! | i must leave , talk to you soon .",
        "bye , sleep well | see you tomorrow | take care , goodbye",
    ),
    _talk(
        "thank you so much for your help ! | thanks , that was kind . | i owe you one .",
        "you are welcome | do not mention it | no problem , any time",
    ),
    _talk(
        "today is my birthday ! | i am turning thirty today . | i get cake and presents today .",
        "happy birthday to you | many happy returns | blow out all the candles",
    ),
    _talk(
        "i failed my exam . | i did not pass the test . | my grades are terrible .",
        "you will study harder next time | that professor was too strict | you can take it again in spring",
    ),
    _talk(
        "i am getting married in june ! | she said yes ! | we are engaged .",
        "congratulations to the happy couple | i want to see the ring | am i invited to the wedding ?",
    ),
    _talk(
        "i cannot sleep at night . | i was awake until four again . | my insomnia is back .",
        "try counting sheep | put your phone away before bed | a dark bedroom helps",
    ),
    _talk(
        "my boyfriend left me . | we broke up last night . | i am single again .",
        "there are other fish in the sea | your heart will mend | he did not deserve you",
    ),
    _talk(
        "i start at a new school on monday . | we move to another school . | i do not know anyone in my class .",
        "you will make friends quickly | the other kids will like you | sit next to someone who smiles",
    ),
    _talk(
        "i lost my keys . | my wallet is gone . | i cannot find my glasses .",
        "look under the cushions | where did you have them last ? | check all of your pockets",
    ),
    _talk(
        "my baby was born yesterday ! | we have a newborn daughter . | i became a father .",
        "how much does she weigh ? | kiss the little one | you will change many diapers",
    ),
    _talk(
        "tell me a joke . | make me laugh . | do you know anything funny ?",
        "why did the chicken cross the road ? | knock knock | a horse walks into a bar",
    ),
    _talk(
        "i won the lottery ! | they gave me a million dollars . | i am rich now .",
        "do not spend it all at once | can you lend me some ? | buy yourself an island",
    ),
    _talk(
        "my computer crashed again . | the internet is down . | my laptop is frozen .",
        "turn it off and on again | did you make a backup ? | call the support line",
    ),
    _talk(
        "i want to lose some weight . | my pants are too tight . | i am starting a diet .",
        "skip dessert for a month | join a gym | count your calories",
    ),
    _talk(
        "did you see the news ? | the election is on every channel . | what do you say to the vote ?",
        "i do not talk about politics | the president will be someone else | i did not turn on my television",
    ),
    _talk(
        "what time is it ? | do you have the time ? | is it noon yet ?",
        "it is a quarter past nine | my clock says half past two | almost midnight",
    ),
)
