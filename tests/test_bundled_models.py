"""The models that ship: they solve their tasks on held-out prompts, and their folders are what they say they are."""

import hashlib
import json
import random

import pytest
import torch
from conftest import BUNDLED

pytestmark = pytest.mark.tiny

N_PROMPTS = 200
HELD_OUT_SEED = 29


def successor_rows(family, direction, form="text"):
    from causalab_mini.data.tasks import successor

    n = 60 if form == "chat" else N_PROMPTS
    return successor.make_pairs(n=n, seed=HELD_OUT_SEED, families=[family], directions=[direction], splits=["test"], form=form)


def ioi_rows():
    from causalab_mini.data.tasks import ioi

    return ioi.make_pairs(n=N_PROMPTS, seed=HELD_OUT_SEED, splits=["test"])


SUCCESSOR = [(family, direction) for family in ("day", "month", "number") for direction in ("next", "previous")]
TASKS = [
    *(
        (name, f"{family}_{direction}", lambda f=family, d=direction: successor_rows(f, d))
        for name in BUNDLED
        for family, direction in SUCCESSOR
    ),
    *(
        ("successor-llama", f"chat_{family}_{direction}", lambda f=family, d=direction: successor_rows(f, d, "chat"))
        for family, direction in SUCCESSOR
    ),
    ("successor-gpt2", "ioi", ioi_rows),
]


def prompt_ids(tokenizer, value):
    if isinstance(value, str):
        return tokenizer(value)["input_ids"]
    rendered = tokenizer.apply_chat_template(value, tokenize=False, add_generation_prompt=True)
    return tokenizer(rendered, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(("name", "task", "rows"), TASKS, ids=[f"{name}-{task}" for name, task, _ in TASKS])
def test_held_out_prompts_are_answered_exactly(plain_models, name, task, rows):
    """Greedy decoding gives every piece of the answer, on prompts of combinations that were not trained on, each alone."""
    model, tokenizer = plain_models(name)
    n_right, lengths = 0, set()
    drawn = rows()
    assert {row["split"] for row in drawn} == {"test"}
    for row in drawn:
        prompt = prompt_ids(tokenizer, row["input"])
        answer = tokenizer(row["base_answer"], add_special_tokens=False)["input_ids"]
        lengths.add(len(prompt))
        with torch.no_grad():
            logits = model(torch.tensor([prompt + answer])).logits[0]
        n_right += logits[len(prompt) - 1 : -1].argmax(dim=-1).tolist() == answer
    assert n_right / len(drawn) >= 0.99
    assert len(lengths) > 3


@pytest.mark.parametrize("name", BUNDLED)
def test_names_have_one_to_several_tokens(plain_models, name):
    from causalab_mini.data.tasks.successor import FAMILIES

    _, tokenizer = plain_models(name)
    counts = {
        len(tokenizer(f" {entity}", add_special_tokens=False)["input_ids"]) for family in FAMILIES.values() for entity in family.entities
    }
    assert min(counts) == 1
    assert max(counts) > 1


@pytest.mark.parametrize("name", BUNDLED)
def test_transformers_and_tokenizers_cut_every_text_the_same_way(checkpoints, plain_models, name):
    from tokenizers import Tokenizer

    from causalab_mini.data.tasks import ioi, successor

    _, tokenizer = plain_models(name)
    plain = Tokenizer.from_file(str(checkpoints(name) / "tokenizer.json"))
    generator = random.Random(0)
    rows = successor.make_pairs(n=60, seed=1) + ioi.make_pairs(n=20, seed=1)
    texts = [row["input"] for row in rows] + [row["base_answer"] for row in rows]
    texts += [
        "",
        " ",
        "  two spaces",
        "Größe, naïve — 東京 🙂",
        "tab\tand\nline",
        "".join(chr(generator.randrange(32, 0x2FF)) for _ in range(200)),
    ]
    for text in texts:
        assert tokenizer(text)["input_ids"] == plain.encode(text).ids
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert ids == plain.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids) == plain.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("name", BUNDLED)
def test_a_folder_is_at_most_one_megabyte_and_has_the_checksums_of_its_card(checkpoints, name):
    folder = checkpoints(name)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert sum(path.stat().st_size for path in files) <= 1_000_000
    card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    assert {path.name for path in files} == {*card["sha256"], "card.json"}
    assert card["sha256"] == {file: hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in card["sha256"]}
    assert all(share >= 0.99 for share in card["held_out_accuracy"].values())


def test_the_two_architectures_are_grouped_llama_and_tied_gpt2_and_wide_enough(plain_models):
    llama, gpt2 = (plain_models(name)[0].config for name in BUNDLED)
    assert llama.model_type == "llama"
    assert llama.num_key_value_heads < llama.num_attention_heads
    assert gpt2.model_type == "gpt2"
    assert gpt2.tie_word_embeddings
    assert min(llama.hidden_size, gpt2.n_embd) >= 64
    for name, config in zip(BUNDLED, (llama, gpt2), strict=True):
        model, tokenizer = plain_models(name)
        assert model.get_input_embeddings().num_embeddings == config.vocab_size == len(tokenizer)


@pytest.mark.parametrize(("name", "table"), [("successor-llama", "pairs"), ("successor-gpt2", "gpt2_pairs")])
def test_the_tables_pairs_have_as_many_pieces_on_both_sides_and_answers_of_one_token(plain_models, name, table):
    from conftest import ROOT

    _, tokenizer = plain_models(name)
    rows = json.loads((ROOT / "data" / "successor" / f"{table}.json").read_text(encoding="utf-8"))
    for row in rows:
        assert len(prompt_ids(tokenizer, row["input"])) == len(prompt_ids(tokenizer, row["counterfactual_inputs"][0]))
        assert {len(tokenizer(row[column], add_special_tokens=False)["input_ids"]) for column in ("base_answer", "cf_answer")} == {1}
