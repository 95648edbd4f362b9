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


OPENERS = ("", "", "well ,", "oh ,", "hmm ,", "haha ,", "you know ,", "actually ,")

PERSONA = (
    PersonaTopic(
        name="pet",
        facts=("i have {plain} .", "at home i keep {plain} ."),
        questions=("do you have any pets ?", "is there an animal in your home ?", "any furry friends at your place ?"),
        answers=("i have {plain}", "i share my home with {plain}", "{hint}", "{hint}"),
        values=_values("""
            two dogs = they bark whenever the mailman comes
            a cat = she purrs on the sofa all day
            a parrot = he repeats every word that i say
            a goldfish = it swims in a round bowl by my bed
            a pony = i saddle her up every morning
            a rabbit = he eats carrots out of my hand
            a snake = she is long and sheds her skin
            a turtle = he is slow and hides in his shell
            three chickens = they lay fresh eggs for us
            a hamster = it runs in its little wheel all night
            a tarantula = it has eight legs and lives in a glass box
            four goats = they chew up everything in the yard
        """),
    ),
    PersonaTopic(
        name="job",
        facts=("i work as {plain} .", "i am {plain} by trade ."),
        questions=("what do you do for a living ?", "what is your job ?", "how do you earn your money ?"),
        answers=("i am {plain}", "i earn my money as {plain}", "{hint}", "{hint}"),
        values=_values("""
            a nurse = i look after the sick in a hospital
            a teacher = i stand in front of a classroom of children
            a baker = i get up at three to make bread
            a lawyer = i argue cases in court
            a farmer = i plow fields and milk cows
            a pilot = i fly planes across the ocean
            a mechanic = i repair broken engines
            a waiter = i carry plates to tables and live on tips
            a programmer = i write software all day
            a plumber = i mend leaking pipes and sinks
            a librarian = i lend out books and keep people quiet
            a firefighter = i rescue people from burning houses
        """),
    ),
    PersonaTopic(
        name="home",
        facts=("i live in {plain} .", "my apartment is in {plain} ."),
        questions=("where do you live ?", "which city do you call home ?", "whereabouts are you ?"),
        answers=("i live in {plain}", "{plain} is my home", "i can see {hint} from my window", "i live near {hint}"),
        values=_values("""
            paris = the eiffel tower
            london = big ben
            rome = the colosseum
            new york = the statue of liberty
            tokyo = mount fuji
            sydney = the opera house
            moscow = the kremlin
            cairo = the pyramids
            berlin = the brandenburg gate
            venice = the canals
            chicago = lake michigan
            athens = the acropolis
        """),
    ),
    PersonaTopic(
        name="food",
        facts=("my favorite food is {plain} .", "i could eat {plain} every day ."),
        questions=("what is your favorite food ?", "what do you love to eat ?", "what should i cook if you visit ?"),
        answers=("{plain} is the best", "i love {plain}", "{hint}", "{hint}"),
        values=_values("""
            pizza = a round crust with melted cheese
            sushi = raw fish on sticky rice
            tacos = folded shells like they make in mexico
            spaghetti = long noodles with tomato sauce
            ice cream = something frozen in a cone
            burgers = a bun with a patty and ketchup
            salad = a big bowl of green leaves
            curry = anything spicy from india
            soup = a warm broth with a spoon
            pancakes = a stack of them with maple syrup
            steak = a thick piece of grilled beef
            chocolate = anything made of cocoa
        """),
    ),
    PersonaTopic(
        name="color",
        facts=("my favorite color is {plain} .", "everything in my closet is {plain} ."),
        questions=("what is your favorite color ?", "which color do you like best ?", "which color would you pick for a new car ?"),
        answers=("i like {plain}", "{plain} is my color", "the shade of {hint}", "it is like {hint}"),
        values=_values("""
            blue = the sky
            green = fresh grass
            red = a fire truck
            yellow = a ripe lemon
            black = the night
            white = snow
            purple = lavender
            pink = a flamingo
            orange = a pumpkin
            brown = old wood
            gray = an elephant
            gold = a wedding ring
        """),
    ),
    PersonaTopic(
        name="hobby",
        facts=("my hobby is {plain} .", "i spend my free time on {plain} ."),
        questions=("do you have any hobbies ?", "what is your hobby ?", "tell me about your favorite pastime ."),
        answers=("{plain} is my thing", "i am into {plain}", "{hint}", "{hint}"),
        values=_values("""
            painting = i put landscapes on canvas
            fishing = i sit by the river with a rod
            knitting = i make scarves out of wool
            chess = i think about kings and pawns
            hiking = i walk up mountains with a backpack
            photography = i carry my camera everywhere
            dancing = i practice tango steps
            swimming = i do laps in the pool
            reading = i finish a novel each week
            gardening = i grow roses behind the house
            yoga = i stretch on my mat
            running = i train for the marathon
        """),
    ),
    PersonaTopic(
        name="music",
        facts=("i listen to {plain} music .", "i am a big fan of {plain} music ."),
        questions=("what kind of music do you like ?", "which songs are on your radio ?", "who do you listen to ?"),
        answers=("i listen to {plain}", "{plain} songs , mostly", "{hint}", "{hint}"),
        values=_values("""
            jazz = give me a saxophone in a smoky bar
            rock = loud electric guitars , please
            country = cowboy singers from nashville
            classical = mozart and beethoven
            rap = fast rhymes over a beat
            techno = anything a dj plays until dawn
            reggae = bob marley , always
            opera = long arias by verdi
            folk = a banjo at the campfire
            disco = dance hits from the seventies
            punk = three chords and a mohawk
            gospel = a church choir on sunday
        """),
    ),
    PersonaTopic(
        name="transport",
        facts=("i get around by {plain} .", "i take the {plain} everywhere ."),
        questions=("how do you get around ?", "how do you get to town ?", "do you drive ?"),
        answers=("i take the {plain}", "by {plain}", "{hint}", "{hint}"),
        values=_values("""
            bicycle = i pedal , rain or shine
            bus = i wait at the stop and show my ticket to the driver
            train = i go to the station and ride the rails
            truck = i haul everything in my pickup
            motorcycle = i put on a helmet and a leather jacket
            skateboard = i roll on a plank with four wheels
            taxi = i wave for a yellow cab
            ferry = i cross the harbor from the pier
            subway = i go underground
            electric car = i plug it into the wall at night
            sled = my huskies pull me over the ice
            helicopter = i land on the roof with my rotor
        """),
    ),
    PersonaTopic(
        name="drink",
        facts=("i drink a lot of {plain} .", "i always order {plain} ."),
        questions=("what would you like to drink ?", "what is in your cup ?", "what can i pour you ?"),
        answers=("{plain} for me", "a glass of {plain}", "{hint}", "{hint}"),
        values=_values("""
            coffee = caffeine from roasted beans
            tea = leaves steeped in a pot
            milk = what the cow gives
            wine = something made from grapes
            beer = a cold pint from the brewery
            lemonade = squeezed citrus with sugar
            water = whatever comes from the tap
            cola = a fizzy dark soda
            cider = pressed apples
            whiskey = something scottish from a barrel
            cocoa = something hot with marshmallows on top
            champagne = bubbles from a bottle with a loud cork
        """),
    ),
    PersonaTopic(
        name="sport",
        facts=("i never miss a {plain} match .", "i watch {plain} on tv ."),
        questions=("which sport do you follow ?", "do you watch any sports ?", "what game is on your tv ?"),
        answers=("i watch {plain}", "{plain} , i never miss a game", "{hint}", "{hint}"),
        values=_values("""
            soccer = eleven players and the world cup
            baseball = home runs and the world series
            basketball = slam dunks and tall players
            tennis = rackets and wimbledon
            hockey = sticks , skates and a puck
            golf = eighteen holes and a caddie
            boxing = two people with gloves in a ring
            cricket = wickets and long afternoons
            football = touchdowns and the super bowl
            rugby = scrums in the mud
            wrestling = masks and body slams
            darts = anyone who hits the bullseye
        """),
    ),
    PersonaTopic(
        name="fear",
        facts=("i am scared of {plain} .", "{plain} frighten me ."),
        questions=("what are you afraid of ?", "what gives you nightmares ?", "what is your biggest fear ?"),
        answers=("{plain} terrify me", "i am afraid of {plain}", "{hint}", "{hint}"),
        values=_values("""
            spiders = anything that crawls in a web
            heights = looking down from a tall building
            clowns = red noses at the circus
            snakes = anything that hisses and slithers
            dentists = the drill in my mouth
            storms = thunder and lightning
            ghosts = haunted houses and dead people
            needles = getting a shot
            crowds = being squeezed between strangers
            elevators = being stuck between two floors
            sharks = fins in the water
            mice = squeaking under the floor
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
        values=_values("anna, tom, maria, jack, susan, peter, emma, david, lucy, frank, olga, henry, rosa, walter"),
    ),
    ToldTopic(
        name="trip",
        statements=("i am flying to {plain} next week .", "my vacation in {plain} starts soon ."),
        acknowledgements=("enjoy your stay in {plain}", "send me a postcard of {hint}", "take a picture of {hint}"),
        questions=("where did i say i am going ?", "do you remember my travel plans ?", "where is my vacation ?"),
        recalls=("you are going to {plain}", "you will travel to {plain}", "you will visit {hint}"),
        values=next(topic.values for topic in PERSONA if topic.name == "home"),
    ),
    ToldTopic(
        name="dinner",
        statements=("i am making {plain} tonight .", "there will be {plain} for dinner here ."),
        acknowledgements=("save me a plate of {plain}", "{plain} for dinner sounds tasty", "{plain} takes a while to make"),
        questions=("do you recall what is for dinner ?", "what did i say i am making ?", "so what is in my oven ?"),
        recalls=("you are making {plain}", "{plain} , you said", "it was {plain}"),
        values=_values("lasagna, meatloaf, chili, dumplings, roast duck, paella, fried rice, stew, ribs, omelets, salmon"),
    ),
    ToldTopic(
        name="visit",
        statements=("my {plain} is coming to visit .", "i am picking up my {plain} at the airport ."),
        acknowledgements=("say hi to your {plain}", "it is nice that your {plain} comes", "hug your {plain} for me"),
        questions=("who did i say is coming ?", "do you remember who will visit me ?", "who is my guest again ?"),
        recalls=("your {plain} is coming", "it is your {plain}", "your {plain} , right"),
        values=_values("uncle, aunt, grandmother, cousin, niece, nephew, godfather, boss, landlord, neighbor, roommate"),
    ),
    ToldTopic(
        name="pain",
        statements=("my {plain} hurts so much today .", "i hurt my {plain} yesterday ."),
        acknowledgements=("put some ice on your {plain}", "i hope your {plain} gets better", "rest your {plain}"),
        questions=("what did i say hurts ?", "do you remember where my pain is ?", "which part of me is sore ?"),
        recalls=("your {plain} is sore", "your {plain} , i hope it heals", "you hurt your {plain}"),
        values=_values("back, knee, shoulder, ankle, elbow, neck, thumb, hip, wrist, jaw, toe"),
    ),
    ToldTopic(
        name="purchase",
        statements=("i just bought {plain} .", "look , the shop sold me {plain} ."),
        acknowledgements=("i want {plain} too", "congratulations on {plain}", "was {plain} expensive ?"),
        questions=("what did i say i bought ?", "do you remember my new thing ?", "what did i get at the shop ?"),
        recalls=("you bought {plain}", "you got {plain} at the shop", "it was {plain}"),
        values=_values("a guitar, a tent, a lamp, a sweater, a blender, a watch, a couch, a ladder, a mirror, a drum, a kite"),
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
