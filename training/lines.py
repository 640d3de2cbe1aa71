"""The training text: prompts of the tasks with their answers.

Responsible for which prompts a bundled model sees, and in which mixture. Knows no tokenizer and trains nothing.
`python training/lines.py llama|gpt2` prints the text.
"""

import argparse
import random
from dataclasses import dataclass, replace

from causalab_mini.data.tasks import ioi, successor

N_LINES = 40_000
N_PAIRS = 30_000


@dataclass(frozen=True, slots=True)
class Line:
    """One prompt and its completion.

    Attributes:
        prompt: Text, or a conversation that waits for the assistant.
        answer: The completion, with its leading space.
        task: Such as `day_next`, `ioi`, or `chat_day_next`.
    """

    prompt: str | list[successor.Message]
    answer: str
    task: str


@dataclass(frozen=True, slots=True)
class Pair:
    """Two lines that differ in one name alone.

    Attributes:
        base: The line with `base_name`.
        counterfactual: The line with `counterfactual_name` in its place.
        base_name: The entity, or the indirect object.
        counterfactual_name: Another one.
    """

    base: Line
    counterfactual: Line
    base_name: str
    counterfactual_name: str


def tasks(architecture: str) -> tuple[str, ...]:
    """Returns the names of the tasks an architecture (`llama` or `gpt2`) is trained on."""
    plain = tuple(f"{family}_{direction}" for family in successor.FAMILIES for direction in successor.STEPS)
    return (*plain, *(f"chat_{task}" for task in plain)) if architecture == "llama" else (*plain, "ioi")


def draw_pair(generator: random.Random, task: str, split: str) -> Pair:
    """Returns a random pair of lines of a task's split."""
    if task == "ioi":
        giving = ioi.draw_setting(generator, split=split)
        others = [name for name in ioi.NAMES if name not in (giving.indirect_object, giving.subject)]
        other_giving = replace(giving, indirect_object=generator.choice(others))
        base, counterfactual = (Line(ioi.prompt(each), ioi.answer(each), task) for each in (giving, other_giving))
        return Pair(base, counterfactual, giving.indirect_object, other_giving.indirect_object)
    family, direction = task.removeprefix("chat_").split("_")
    setting = successor.draw_setting(generator, family=family, direction=direction, split=split)
    others = [entity for entity in successor.entities(family, direction) if entity != setting.entity]
    other = setting.with_entity(generator.choice(others))
    n_turns, system = generator.choice((1, 2)), generator.random() < 0.5

    def line(each: successor.Setting) -> Line:
        if task.startswith("chat_"):
            messages = successor.conversation(each, n_turns=n_turns, system=system)
            return Line(messages, successor.answer(each), task)
        return Line(successor.prompt(each), successor.answer(each), task)

    return Pair(line(setting), line(other), setting.entity, other.entity)


def training_lines(architecture: str, seed: int) -> list[Line]:
    """Returns the training text of an architecture, `N_LINES` lines of the split `train`."""
    return [pair.base for pair in _pairs(architecture, random.Random(seed), N_LINES)]


def training_pairs(architecture: str, seed: int) -> list[Pair]:
    """Returns `N_PAIRS` pairs of lines of the split `train`, for the interchange training."""
    return _pairs(architecture, random.Random(seed + 1), N_PAIRS)


def _pairs(architecture: str, generator: random.Random, n: int) -> list[Pair]:
    """Returns random pairs: a successor task has weight 2, the same in chat form 1, indirect objects 6."""
    names = tasks(architecture)
    weights = [6 if name == "ioi" else 1 if name.startswith("chat_") else 2 for name in names]
    return [draw_pair(generator, task, "train") for task in generator.choices(names, weights, k=n)]


def sentences(line: Line) -> list[str]:
    """Returns the plain text of a line, one string a chat turn."""
    if isinstance(line.prompt, str):
        return [f"{line.prompt}{line.answer}."]
    return [*(message["content"] for message in line.prompt), f"{line.answer.strip()}."]


def main() -> None:
    """Prints the training text, a line a prompt, chat turns apart by ` / `."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("architecture", choices=("llama", "gpt2"))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for line in training_lines(arguments.architecture, arguments.seed):
        print(" / ".join(sentences(line)))


if __name__ == "__main__":
    main()
