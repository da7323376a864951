#!/usr/bin/env python3
"""Makes the small tokenizers of this folder and golden.json with the `tokenizers` package (0.23).

usage: make.py TEXT   (UTF-8 text to train on; tests/models/val.txt.xz unpacked)
"""
import json
import random
import sys

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers,
                        pre_tokenizers, processors, trainers)

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
ADDED = [AddedToken("<tool>", special=True), AddedToken("<l>", lstrip=True),
         AddedToken("<r>", rstrip=True, normalized=False),
         AddedToken("word", single_word=True, normalized=False),
         AddedToken("<lr>", lstrip=True, rstrip=True, special=True), AddedToken("<tool>x")]
TEXTS = [
    "", " ", "\n", "Hello world", " Hello  world ", "don't DON'T I'LL we'Re \u017f'\u017f",
    "x\u180ey \u0085z\u00a0w", "123456 1234567 \u00bd \u2167 \u0661\u0662\u0663",
    "na\u00efve nai\u0308ve caf\u00e9 cafe\u0301", "if (x) {\n\t\treturn 1;\r\n}\r\n\r\n  ",
    "<tool> a <tool>x <l> b  <l>  <r>   c <lr>  d wordy word aword word.", "<s>hi</s>",
    "<|begin|>hi", "\u2581\u2581a \u2581b", "\u65e5\u672c\u8a9e \ud55c\uad6d\uc5b4 \u0e44\u0e17\u0e22",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 emoji \U0001f3f3\ufe0f\u200d\U0001f308", "a" * 300,
    " " * 200 + "x", "ab" * 100, "<0x41><0x0A>", "\ufb01 \u2460 \u338f \u212b",
]


def save(tokenizer, name, string_merges=False):
    j = json.loads(tokenizer.to_str())
    if string_merges:
        j["model"]["merges"] = [" ".join(m) for m in j["model"]["merges"]]
    with open(name, "w", encoding="utf-8") as f:
        json.dump(j, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


def byte_level(corpus, regex, normalizer=None, ignore_merges=False):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        t.normalizer = normalizer
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(regex), "isolated", False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|begin|>", "<|end|>"], show_progress=False))
    return t


def sentencepiece(corpus, normalizer, pre_tokenizer, decoder, train_with):
    fallback = ["<0x%02X>" % b for b in range(256)]
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if normalizer is not None:
        t.normalizer = normalizer
    t.pre_tokenizer = train_with
    t.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=900, limit_alphabet=120, special_tokens=["<unk>", "<s>", "</s>"] + fallback,
        show_progress=False))
    j = json.loads(t.to_str())
    j["added_tokens"] = [a for a in j["added_tokens"] if not a["content"].startswith("<0x")]
    j["pre_tokenizer"] = None
    t = Tokenizer.from_str(json.dumps(j))
    if pre_tokenizer is not None:
        t.pre_tokenizer = pre_tokenizer
    t.decoder = decoder
    return t


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        text = f.read(300000)
    corpus = [text[i:i + 4000] for i in range(0, len(text), 4000)]

    t = byte_level(corpus, LLAMA3, ignore_merges=True)
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin|> $A", pair="<|begin|> $A $B",
                                      special_tokens=[("<|begin|>", 0)])])
    save(t, "llama3.json")

    t = byte_level(corpus, QWEN, normalizer=normalizers.NFC())
    t.add_tokens(ADDED)
    save(t, "qwen.json", string_merges=True)

    spaces = normalizers.Sequence([normalizers.Prepend("\u2581"),
                                   normalizers.Replace(" ", "\u2581")])
    decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(),
                                 decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t = sentencepiece(corpus, spaces, None, decoder,
                      pre_tokenizers.Split("\u2581", "merged_with_next"))
    t.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A $B", special_tokens=[("<s>", 1), ("</s>", 2)])
    save(t, "llama2.json", string_merges=True)

    meta = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    t = sentencepiece(corpus, None, meta, decoders.Sequence([
        decoders.Metaspace(prepend_scheme="first"), decoders.ByteFallback()]), meta)
    t.add_tokens(ADDED)
    save(t, "metaspace.json")

    rng = random.Random(3)
    pool = [chr(c) for c in list(range(32, 127)) * 2 + list(range(0xa0, 0x180))]
    pool += ["\u180e", "\u0085", "\u3000", "\u0301", "\U0001f600", "\uac00", "<tool>", "<l>", "<r>",
             "<lr>", "word", "  ", "'s", "'LL", "\n", "\t", "\u2581", "\u017f", " ", " ", " "]
    texts = TEXTS + ["".join(rng.choice(pool) for _ in range(rng.randrange(1, 60)))
                     for _ in range(60)]
    golden = {}
    for name in ["llama3.json", "qwen.json", "llama2.json", "metaspace.json"]:
        t = Tokenizer.from_file(name)
        golden[name] = [{"text": x, "ids": t.encode(x, add_special_tokens=False).ids,
                         "decoded": t.decode(t.encode(x, add_special_tokens=False).ids,
                                             skip_special_tokens=False)} for x in texts]
    with open("golden.json", "w", encoding="utf-8") as f:
        json.dump(golden, f, ensure_ascii=True, separators=(",", ":"))
        f.write("\n")


main()
