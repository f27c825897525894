"""Model folders with something wrong: refused by file and field, by every command that opens one."""

import json
import struct
import sys

sys.path.insert(0, "tests/support")
from cli import (DEMO, complains, copy_of_demo, deepinfer, edit_config, main, replace, shard,
                 succeeds, test)

INDEX = "model.safetensors.index.json"


def refused(model, *parts):
    """By run, and by inspect, which lists every fault and fails."""
    line = complains(deepinfer("run", "-m", model, "-p", "Hello!", "-n", 1), 1, *parts)
    result = deepinfer("inspect", model)
    assert result.status == 1, result
    for part in parts:
        assert str(part).lower() in (result.out + result.err).lower(), (part, result)
    return line


def edit_text(model, **fields):
    edit_config(model, lambda config: config["text_config"].update(fields))


def read_header(file):
    raw = file.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def write_header(file, header, data):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    replace(file, struct.pack("<Q", len(text)) + text + data)


def edit_header(file, change):
    header, data = read_header(file)
    change(header)
    write_header(file, header, data)


def tensor_in(file, ending):
    header, _ = read_header(file)
    return next(name for name in header if name.endswith(ending))


@test
def test_the_demo_model_has_no_fault(_):
    result = succeeds(deepinfer("inspect", DEMO))
    for word in ("layers.0.attn.wq_a.weight", "F8_E4M3", "experts", "engram", "hidden_size"):
        assert word in result.out, (word, result)


@test
def test_a_missing_folder_is_named(folder):
    complains(deepinfer("run", "-m", folder / "none", "-p", "x"), 1, "none", "no such file")
    complains(deepinfer("tokenize", "-m", folder / "none", stdin='"a"\n'), 1, "none")
    complains(deepinfer("logits", "-m", folder / "none", "--ids", "1"), 1, "none")
    assert deepinfer("inspect", folder / "none").status == 1


@test
def test_a_file_in_place_of_the_folder_is_named(folder):
    (folder / "file").write_text("x")
    complains(deepinfer("run", "-m", folder / "file", "-p", "x"), 1, "file")


@test
def test_a_missing_config_is_named(folder):
    refused(copy_of_demo(folder, without=["config.json"]), "config.json")


@test
def test_a_config_that_is_no_json_is_refused_with_the_place(folder):
    model = copy_of_demo(folder)
    replace(model / "config.json", '{"architectures": [}')
    refused(model, "config.json")


@test
def test_a_config_that_is_no_object_is_refused(folder):
    model = copy_of_demo(folder)
    replace(model / "config.json", "[]")
    refused(model, "config.json")


@test
def test_another_architecture_is_refused_by_name(folder):
    model = copy_of_demo(folder)
    edit_config(model, lambda c: c.update(architectures=["DeepseekV4ForCausalLM"],
                                          model_type="deepseek_v4"))
    refused(model, "config.json", "DeepseekV4ForCausalLM", "DeepseekV41ForCausalLM")


@test
def test_another_quantisation_is_refused_by_field(folder):
    model = copy_of_demo(folder)
    edit_config(model, lambda c: c["quantization_config"].update(weight_block_size=[128, 128]))
    refused(model, "config.json", "weight_block_size", "128")


@test
def test_config_values_out_of_range_are_refused_by_field(folder):
    for number, (field, value) in enumerate([("hidden_size", 0), ("hidden_size", -256),
                                             ("num_hidden_layers", 10**9), ("vocab_size", 1.5),
                                             ("num_experts_per_tok", 17), ("head_dim", "64"),
                                             ("sliding_window", 0), ("hidden_size", 2**62),
                                             ("engram_num_embeddings", [1, 2])]):
        place = folder / str(number)
        place.mkdir()
        model = copy_of_demo(place)
        edit_text(model, **{field: value})
        refused(model, "config.json", field)


@test
def test_a_missing_config_field_is_refused_by_name(folder):
    model = copy_of_demo(folder)
    edit_config(model, lambda c: c["text_config"].pop("q_lora_rank"))
    refused(model, "config.json", "q_lora_rank")


@test
def test_a_config_that_disagrees_with_the_shapes_is_refused_by_tensor(folder):
    model = copy_of_demo(folder)
    edit_text(model, moe_intermediate_size=64)
    refused(model, "safetensors", "w1")


@test
def test_a_missing_shard_is_named(folder):
    refused(copy_of_demo(folder, without=["model-00002-of-00002.safetensors"]),
            "model-00002-of-00002.safetensors")


@test
def test_a_missing_index_is_named(folder):
    refused(copy_of_demo(folder, without=[INDEX]), "safetensors")


@test
def test_a_truncated_shard_is_named_wherever_it_ends(folder):
    whole = (DEMO / "model-00001-of-00002.safetensors").read_bytes()
    for number, length in enumerate((0, 5, 8, 1000, 100_000, len(whole) - 1)):
        place = folder / str(number)
        place.mkdir()
        model = copy_of_demo(place)
        replace(model / "model-00001-of-00002.safetensors", whole[:length])
        refused(model, "model-00001-of-00002.safetensors")


@test
def test_a_shard_with_bytes_behind_its_end_is_refused(folder):
    model = copy_of_demo(folder)
    replace(shard(model), shard(model).read_bytes() + b"\0" * 8)
    refused(model, "model-00001-of-00002.safetensors")


@test
def test_a_header_that_claims_more_than_the_file_is_refused(folder):
    model = copy_of_demo(folder)
    raw = shard(model).read_bytes()
    replace(shard(model), struct.pack("<Q", 2**63 + 7) + raw[8:])
    refused(model, "model-00001-of-00002.safetensors")


@test
def test_tensors_that_overlap_are_refused_by_name(folder):
    model = copy_of_demo(folder)
    header, _ = read_header(shard(model))
    first, second = [n for n in header if n.endswith("hc_attn_fn")][:2]
    offsets = header[first]["data_offsets"]
    edit_header(shard(model), lambda h: h[second].update(data_offsets=offsets))
    refused(model, "model-00001-of-00002.safetensors")


@test
def test_a_shape_that_disagrees_with_its_bytes_is_refused_by_name(folder):
    model = copy_of_demo(folder)
    name = tensor_in(shard(model), "hc_attn_fn")
    edit_header(shard(model), lambda h: h[name].update(shape=[24, 2**60]))
    refused(model, "model-00001-of-00002.safetensors", name)


@test
def test_an_unknown_dtype_is_refused_by_name(folder):
    model = copy_of_demo(folder)
    name = tensor_in(shard(model), "hc_attn_fn")
    edit_header(shard(model), lambda h: h[name].update(dtype="Q7_K"))
    refused(model, "model-00001-of-00002.safetensors", "Q7_K")


@test
def test_a_tensor_that_is_missing_is_named(folder):
    model = copy_of_demo(folder)
    name = tensor_in(shard(model), "attn_sink")
    header, data = read_header(shard(model))
    # Another name for the same bytes, so that nothing else is wrong with the file.
    header = {("stranger" if n == name else n): v for n, v in header.items()}
    write_header(shard(model), header, data)
    index = json.loads((model / INDEX).read_text())
    index["weight_map"]["stranger"] = index["weight_map"].pop(name)
    replace(model / INDEX, json.dumps(index))
    refused(model, name)


@test
def test_an_index_that_leaves_the_folder_is_refused(folder):
    outside = folder / "outside.safetensors"
    outside.write_bytes((DEMO / "model-00001-of-00002.safetensors").read_bytes())
    for path in ("../outside.safetensors", str(outside)):
        place = folder / ("a" if path[0] == "/" else "b")
        place.mkdir()
        model = copy_of_demo(place)
        index = json.loads((model / INDEX).read_text())
        for name, file in index["weight_map"].items():
            if file.startswith("model-00001"):
                index["weight_map"][name] = path
        replace(model / INDEX, json.dumps(index))
        refused(model, INDEX, "outside.safetensors")


@test
def test_an_index_of_deep_nesting_is_refused(folder):
    model = copy_of_demo(folder)
    replace(model / INDEX, '{"weight_map":' + "[" * 100_000 + "]" * 100_000 + "}")
    refused(model, INDEX)


@test
def test_a_shard_that_is_a_folder_is_named(folder):
    model = copy_of_demo(folder, without=["model-00001-of-00002.safetensors"])
    (model / "model-00001-of-00002.safetensors").mkdir()
    refused(model, "model-00001-of-00002.safetensors")


@test
def test_a_missing_tokenizer_is_named(folder):
    model = copy_of_demo(folder, without=["tokenizer.json"])
    complains(deepinfer("run", "-m", model, "-p", "Hello!"), 1, "tokenizer.json")
    complains(deepinfer("tokenize", "-m", model, stdin='"a"\n'), 1, "tokenizer.json")


@test
def test_ids_need_no_tokenizer(folder):
    model = copy_of_demo(folder, without=["tokenizer.json", "tokenizer_config.json"])
    succeeds(deepinfer("logits", "-m", model, "--ids", "0,5", "-o", folder / "x.safetensors"))


@test
def test_a_tokenizer_without_a_needed_token_is_refused_by_token(folder):
    model = copy_of_demo(folder)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    token = next(t for t in tokenizer["added_tokens"] if t["content"] == "<｜Assistant｜>")
    token["content"] = "<｜Butler｜>"
    replace(model / "tokenizer.json", json.dumps(tokenizer))
    complains(deepinfer("run", "-m", model, "-p", "Hello!"), 1, "tokenizer.json", "<｜Assistant｜>")


@test
def test_a_tokenizer_of_another_kind_is_refused(folder):
    model = copy_of_demo(folder)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["model"]["type"] = "WordPiece"
    replace(model / "tokenizer.json", json.dumps(tokenizer))
    complains(deepinfer("tokenize", "-m", model, stdin='"a"\n'), 1, "tokenizer.json", "WordPiece")


@test
def test_inspect_lists_every_fault_and_not_the_first_alone(folder):
    model = copy_of_demo(folder, without=["model-00002-of-00002.safetensors"])
    name = tensor_in(shard(model), "hc_attn_fn")
    edit_header(shard(model), lambda h: h[name].update(dtype="F16"))
    result = deepinfer("inspect", model)
    assert result.status == 1, result
    for part in ("model-00002-of-00002.safetensors", name):
        assert part in result.out + result.err, (part, result)


main()
