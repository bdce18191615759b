"""35 functions for reinforcement learning. No function of another split is among them."""

from setup.demo.function import Function

FUNCTIONS = (
    Function("operator", "high - low", "high + low", ("9, 4", "5, 0"), """
        def gap(high, low):
            result = high - low
            return result
        """),
    Function("operator", "width + height", "width - height", ("3, 2", "4, 0"), """
        def around(width, height):
            half = width + height
            return half * 2
        """),
    Function("operator", "paid - price", "paid + price", ("5, 3", "2, 0"), """
        def change(paid, price):
            left = paid - price
            return max(left, 0)
        """),
    Function("operator", "fed and clean", "fed or clean", ("True, False", "True, True", "False, False"), """
        def ready(fed, clean):
            if fed and clean:
                return 'yes'
            return 'no'
        """),
    Function("operator", "5 or sick", "5 and sick", ("3, False", "2, True", "8, True"), """
        def resting(hours, sick):
            return hours < 5 or sick
        """),
    Function("operator", "result + step", "result - step", ("3", "1"), """
        def sumto(number):
            result = 0
            for step in range(number):
                result = result + step
            return result
        """),
    Function("operator", "age - 1", "age + 1", ("[5, 2]", "[]"), """
        def younger(ages):
            return [age - 1 for age in ages]
        """),
    Function("comparison", "left < right", "left > right", ("5, 3", "2, 2", "1, 4"), """
        def smaller(left, right):
            if left < right:
                return left
            return right
        """),
    Function("comparison", "age > 17", "age < 17", ("20", "17", "3"), """
        def adult(age):
            return age > 17
        """),
    Function("comparison", "item == wanted", "item != wanted", ("[1, 2], 2", "[], 1", "[3, 3], 3"), """
        def matches(items, wanted):
            return [item for item in items if item == wanted]
        """),
    Function("comparison", "len(first) > len(second)", "len(first) < len(second)", ("'ab', 'c'", "'a', 'xyz'"), """
        def longer(first, second):
            if len(first) > len(second):
                return first
            return second
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
            price = 20
            if large:
                price = price + 8
            return price
        """),
    Function("constant", "3", "5", ("60", "10"), """
        def discount(price):
            if price > 40:
                return 3
            return 0
        """),
    Function("constant", "True", "False", ("['a', 'bbb']", "[]"), """
        def longest_first(words):
            return sorted(words, key=len, reverse=True)
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
    Function("name", "max", "min", ("[4, 6]", "[]"), """
        def oldest(ages):
            if not ages:
                return 0
            return max(ages)
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
    Function("name", "startswith", "endswith", ("'please go'", "'go'"), """
        def polite(text):
            return text.startswith('please')
        """),
    Function("name", "endswith", "startswith", ("['cats']", "[]"), """
        def plural(words):
            return [word for word in words if word.endswith('s')]
        """),
    Function("name", "max", "min", ("-5", "0"), """
        def not_below(number):
            return max(number, 0)
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
    Function("off_by_one", "1", "2", ("6", "3"), """
        def before(day):
            if day > 5:
                return day - 1
            return day
        """),
    Function("off_by_one", "1", "0", ("['a', 'b']", "[]"), """
        def tail(words):
            return ' '.join(words[1:])
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
