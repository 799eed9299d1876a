"""Model types that are known and not served, each with what is missing."""

from __future__ import annotations

#: What is missing, then the model types that need it.
_BY_REASON = {
    "mixture-of-experts layers of a form that Ortolan does not have": """
        afmoe aria_text cohere2_moe dbrx deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 dots1 ernie4_5_moe
        exaone_moe flex_olmo glm4_moe glm4_moe_lite glm_moe_dsa gpt_oss granitemoe granitemoeshared granitemoe_swa
        hunyuan_v1_moe jetmoe llama4 llama4_text longcat_flash mimo_v2_flash minimax_m2 phimoe sarvam_moe
        solar_open""",
    "layers with a recurrent state (linear attention or state space)": """
        bamba falcon_h1 falcon_mamba granitemoehybrid jamba kimi_linear lfm2 lfm2_moe lfm3 mamba mamba2 minimax
        nemotron_h olmo_hybrid qwen3_5 qwen3_5_text qwen3_5_moe qwen3_5_moe_text qwen3_next recurrent_gemma rwkv
        xlstm zamba zamba2""",
    "ALiBi position biases": "bloom mpt",
    "an attention of its own that cannot be replaced": "codegen ctrl diffllama falcon gptj reformer xlnet",
    "multi-head latent attention": "axk1 axk2 minicpm3 sarvam_mla youtu",
    "an encoder": """
        bart bert bert-generation big_bird bigbird_pegasus blenderbot blenderbot-small camembert data2vec-text
        electra ernie led longt5 m2m_100 marian mbart megatron-bert mt5 mvp nllb pegasus plbart prophetnet rembert
        roberta roberta-prelayernorm roc_bert roformer t5 t5gemma umt5 xlm xlm-roberta xlm-roberta-xl xmod""",
    "images, audio or video": """
        emu3 fuyu gemma3 gemma3n gemma4 git got_ocr2 idefics2 idefics3 internvl llava llava_next mistral3 mllama
        moshi musicgen paligemma phi4_multimodal qwen2_5_omni qwen2_5_vl qwen2_audio qwen2_vl qwen3_vl smolvlm
        speech_to_text trocr voxtral whisper""",
}

#: What Ortolan lacks, by model type.
REFUSED: dict[str, str] = {kind: reason for reason, kinds in _BY_REASON.items() for kind in kinds.split()}
