import pytest
import torch
from authoring import LOGITS, document, observe, site
from conftest import ROOT

from causalab_mini.engine.landing import deranged
from causalab_mini.plan import build_request

pytestmark = pytest.mark.tiny


def value_at_block_1(engine, writes):
    zero = {"site": site("block_output", 0), "pos": -1, "mechanism": "swap", "operand": 0}
    other = {"site": site("block_output", 1), "pos": -1, "mechanism": "permute", "params": {"seed": 1}}
    reads = {
        "stream": {"site": site("block_output", 1), "pos": -1, "model": "patched"},
        "logits": {"site": LOGITS, "pos": -1, "model": "patched"},
    }
    models = {"patched": {"input": "base", "writes": writes}}
    intervention = {"reads": reads, "writes": {"zero": zero, "other": other}, "models": models}
    raw = document({"i": intervention}, {"s": observe("i", "successor/pairs", both=False, outputs={"stream": "stream"})})
    return engine.execute(build_request(raw, ROOT / "data", engine)).step("s").results["outputs"]["stream"].value.data[0]


def test_permute_gives_another_rows_value_with_the_writes_before_it(engines):
    engine = engines("successor-llama")
    alone, both = (value_at_block_1(engine, writes) for writes in (["zero"], ["zero", "other"]))
    order = deranged(list(range(len(alone))), "1/other", [1] * len(alone), is_exact=True)
    assert all(row != other for row, other in enumerate(order))
    torch.testing.assert_close(both[order], alone, rtol=1e-5, atol=1e-5)
