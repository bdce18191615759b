"""35 demo functions for reinforcement learning. The splits share no function."""

from setup.demo.function import Function

# A table: one line of fields, then the source.
# fmt: off
FUNCTIONS = (
    Function("operator", "high - low", "high + low", ("9, 4", "5, 0"), """
        def gap(high, low):
            result = high - low
            return result
        """),
    Function("operator", "head + tail", "head - tail", ("3, 2", "4, 0"), """
        def length(head, tail):
            return head + tail
        """),
    Function("operator", "paid - price", "paid + price", ("5, 3", "2, 0"), """
        def change(paid, price):
            coins = paid - price
            return [coins]
        """),
    Function("operator", "won + drawn", "won - drawn", ("3, 2", "4, 0"), """
        def score(won, drawn):
            points = won + drawn
            return points * 2
        """),
    Function("operator", "hour + delay", "hour - delay", ("9, 2", "8, 0"), """
        def later(hour, delay):
            when = hour + delay
            return min(when, 24)
        """),
    Function("operator", "front + back", "front - back", ("3, 2", "4, 0"), """
        def pages(front, back):
            return [front + back]
        """),
    Function("operator", "age + years", "age - years", ("[5, 2], 3", "[], 1"), """
        def older(ages, years):
            return [age + years for age in ages]
        """),
    Function("comparison", "left < right", "left > right", ("5, 3", "2, 2", "1, 4"), """
        def smaller(left, right):
            if left < right:
                return left
            return right
        """),
    Function("comparison", "mine > yours", "mine < yours", ("3, 2", "2, 2", "1, 4"), """
        def taller(mine, yours):
            return mine > yours
        """),
    Function("comparison", "item == wanted", "item != wanted", ("[1, 2], 2", "[], 1", "[3, 3], 3"), """
        def matches(items, wanted):
            return [item for item in items if item == wanted]
        """),
    Function("comparison", "ours > theirs", "ours < theirs", ("3, 2", "2, 2", "1, 4"), """
        def winner(ours, theirs):
            if ours > theirs:
                return 'we'
            return 'they'
        """),
    Function("comparison", "len(items) == 0", "len(items) != 0", ("[]", "[1]"), """
        def empty(items):
            return len(items) == 0
        """),
    Function("comparison", "old != new", "old == new", ("1, 2", "3, 3"), """
        def changed(old, new):
            if old != new:
                return 'yes'
            return 'no'
        """),
    Function("comparison", "len(word) < 4", "len(word) > 4", ("['a', 'hello']", "[]"), """
        def short(words):
            return [word for word in words if len(word) < 4]
        """),
    Function("constant", "60", "50", ("1", "0"), """
        def minutes(hours):
            return hours * 60
        """),
    Function("constant", "6", "9", ("1", "0"), """
        def eggs(boxes):
            count = boxes * 6
            return count
        """),
    Function("constant", "8", "9", ("True", "False"), """
        def extra(large):
            return 8 if large else 0
        """),
    Function("constant", "3", "5", ("60", "10"), """
        def discount(price):
            if price > 40:
                return 3
            return 0
        """),
    Function("constant", "7", "8", ("1", "0"), """
        def days(weeks):
            return [weeks * 7]
        """),
    Function("constant", "2", "4", ("0", "7"), """
        def at_least(number):
            return max(number, 2)
        """),
    Function("constant", "10", "30", ("''", "'ab'"), """
        def points(name):
            score = 10
            return score + len(name)
        """),
    Function("name", "max", "min", ("[3, 5]", "[4]"), """
        def longest(lengths):
            return [max(lengths)]
        """),
    Function("name", "min", "max", ("[[1, 2]]", "[]"), """
        def lows(rows):
            return [min(row) for row in rows]
        """),
    Function("name", "upper", "lower", ("['a', 'b']", "[]"), """
        def loud(words):
            return ' '.join(words).upper()
        """),
    Function("name", "lower", "upper", ("'HI'", "''"), """
        def whisper(text):
            return text.lower() + '...'
        """),
    Function("name", "startswith", "endswith", ("'a b'", "'b'"), """
        def first_a(text):
            return text.startswith('a')
        """),
    Function("name", "endswith", "startswith", ("['cats']", "[]"), """
        def plural(words):
            return [word for word in words if word.endswith('s')]
        """),
    Function("name", "max", "min", ("[4, 7]", "[3, 5, 9]"), """
        def better(scores):
            return max(scores[:2])
        """),
    Function("off_by_one", "1", "0", ("[4, 5]", "['a', 'b', 'c']"), """
        def second(items):
            return items[1]
        """),
    Function("off_by_one", "1", "2", ("7", "0"), """
        def after(year):
            result = year + 1
            return result
        """),
    Function("off_by_one", "1", "2", ("6", "1"), """
        def before(day):
            return [day - 1]
        """),
    Function("off_by_one", "1", "0", ("[4, 5]", "[]"), """
        def tail(items):
            return items[1:3]
        """),
    Function("off_by_one", "1", "2", ("[0, 4]", "[]"), """
        def floors(levels):
            return [level + 1 for level in levels]
        """),
    Function("off_by_one", "1", "2", ("2", "0"), """
        def climb(count):
            found = []
            for step in range(count):
                found.append(step + 1)
            return found
        """),
    Function("off_by_one", "1", "2", ("['a', 'b']", "['c']"), """
        def commas(words):
            return len(words) - 1 if words else 0
        """),
)
# fmt: on
