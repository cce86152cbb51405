"""Host names outside ATen: libraries, then ranges and autograd nodes, then the words of an unlisted operator.

Ordered: the first expression that matches decides. A new library is one line here.
"""

from __future__ import annotations

from opanatomy.classification.rules import (
    COMMUNICATION,
    CONTRACTION,
    ELEMENTWISE,
    MOVEMENT,
    NORMALIZATION,
    OTHER,
    Pattern,
    RuleTable,
)

_SOFTMAX = (NORMALIZATION,)

_COMMUNICATION = RuleTable(
    "operators/communication",
    (
        Pattern(
            "product overlapped with a collective",
            CONTRACTION,
            r"^symm_mem::(fused_\w*(matmul|mm)|_async_input_mm)",
            delegates=True,
            contains=(COMMUNICATION,),
        ),
        Pattern("symmetric memory, local", MOVEMENT, r"^symm_mem::(memset32_|_rendezvous|stream_write_value32_)"),
        Pattern("collective backend", COMMUNICATION, r"^(nccl|gloo|ucc|mpi|xccl|rccl|hccl|cncl):(?!:)"),
        Pattern("torch.distributed", COMMUNICATION, r"^record_param_comms|^_?c10d(_functional)?(_autograd)?::"),
        Pattern("symmetric memory", COMMUNICATION, r"^symm_mem::|^_dtensor::"),
        Pattern(
            "FSDP, copies around a collective",
            MOVEMENT,
            r"^fsdp::(all_gather_copy_in|split_with_sizes_copy|chunk_cat|copy_)",
            delegates=True,
        ),
        Pattern("FSDP", COMMUNICATION, r"^fsdp::"),
        Pattern(
            "expert parallel libraries and NVSHMEM",
            COMMUNICATION,
            r"^(deep_?ep\w*|dpsk::ep|mori|uccl|nvshmem\w*)::|::\w*(moe_)?a2a_(dispatch|combine)",
        ),
        Pattern("fbgemm", COMMUNICATION, r"^fbgemm::(all_to_one_device|car_|nccl_|(one|two)_shot)"),
    ),
)

_ATTENTION = RuleTable(
    "operators/attention libraries",
    (
        Pattern("flash-attn", CONTRACTION, r"^flash_attn(_\w+)?::", contains=_SOFTMAX),
        Pattern("vLLM's flash attention, its schedule", OTHER, r"^_(vllm_fa\d|flashmla)\w*::\w*(metadata|schedul)"),
        Pattern("vLLM's flash attention", CONTRACTION, r"^_(vllm_fa\d|flashmla)\w*::", contains=_SOFTMAX),
        Pattern("NATTEN and SageAttention", CONTRACTION, r"^(natten|sageattn)\w*::", contains=_SOFTMAX),
        Pattern(
            "xFormers and FlashInfer",
            CONTRACTION,
            r"^xformers(_\w+)?::\w*(attention|fmha|flash)|^flashinfer::\w*(prefill|decode)",
            contains=_SOFTMAX,
        ),
        # Python autograd functions around an extension: their kernels are launched by the function or its node itself.
        Pattern(
            "autograd function of an attention library",
            CONTRACTION,
            r"^_?(Flash|Sage|Ring|Ulysses|FusedAttn|BlockSparse)\w*(Attn|Attention)\w*(Backward\d*)?$"
            r"|^_?(FusedAttn|AttnFuncWith)\w*(Backward\d*)?$",
            contains=_SOFTMAX,
        ),
    ),
)

_FUNCTIONS = RuleTable(
    "operators/autograd functions of libraries",
    (
        Pattern("Liger, loss over a product", None, r"^LigerFusedLinear\w*Function(Backward)?$"),
        Pattern(
            "Liger, norms and losses",
            NORMALIZATION,
            r"^Liger\w*(Norm|CrossEntropy|KLDiv|JSD|Softmax|Loss|Sparsemax|TVD)\w*Function(Backward)?$",
            delegates=True,
        ),
        Pattern(
            "Liger, maps",
            ELEMENTWISE,
            r"^Liger\w*(SiLUMul|GELUMul|SwiGLU|GeGLU|Rope|RoPE|MRope|RotaryEmb|DyT)\w*Function(Backward)?$",
            delegates=True,
        ),
        Pattern(
            "norm",
            NORMALIZATION,
            r"^\w*(LayerNorm|RMSNorm|RmsNorm|GroupNorm)\w*(Function|Func|Fn)(Backward)?$|^SyncBatchNorm(Backward)?$",
            delegates=True,
        ),
        Pattern("bitsandbytes", CONTRACTION, r"^MatMul(4Bit|8bitLt|8bit)(Backward)?$", delegates=True),
        Pattern("causal convolution", CONTRACTION, r"^CausalConv1dFn(Backward)?$", delegates=True),
        Pattern("selective scan", OTHER, r"^SelectiveScanFn(Backward)?$", delegates=True),
    ),
)

_FB = r"^(fb|fbgemm)::\w*"

_FBGEMM = RuleTable(
    "operators/fbgemm",
    (
        Pattern(
            "product",
            CONTRACTION,
            _FB + r"(bmm|gemm|f8f8bf16|bf16i4|f8i4|i8i8|f4f4|mx8mx8|_mm_|matmul)",
            delegates=True,
        ),
        Pattern("dequantization", ELEMENTWISE, _FB + r"(Quantized\w*To(Float|Half|Single)|[dD]equantize)"),
        Pattern(
            "quantization with a maximum of its own",
            NORMALIZATION,
            _FB + r"(Rowwise|NBit|PaddedFP8|MSFP|quantize_\w*per_(row|tensor|col|group)|get_fp8_per)",
        ),
        Pattern("quantization", ELEMENTWISE, _FB + r"([qQ]uantize|FloatTo|HFP8|Bfloat16)"),
        Pattern("reduction", NORMALIZATION, _FB + r"(cumsum|segment_sum|softmax|norm|reduce)", delegates=True),
        Pattern(
            "map",
            ELEMENTWISE,
            _FB + r"(jagged_dense\w*(add|mul)|jagged_jagged_elementwise|bounds_check|rope|swiglu|silu)",
            delegates=True,
        ),
        Pattern(
            "sort and cache",
            OTHER,
            _FB + r"(sort|unique|topk|linearize|lxu_|lru_|lfu_|uvm|cuda_mem|invert_permute|find_)",
        ),
        Pattern(
            "look-up and layout",
            MOVEMENT,
            _FB + r"(embedding|permute|recat|bucketize|jagged|dense|index|gather|scatter|cat|select|copy|expand"
            r"|repeat|pack|lengths|offsets|segment|transpose|ssd|merge_pooled)",
        ),
    ),
    namespaces=frozenset({"fb", "fbgemm"}),
)

_QUANTIZED_NAMESPACE = r"^(_?quantized|onednn|mkldnn_prepacked|mkl|mkldnn|sparse|xnnpack|prepacked)::"

_QUANTIZED = RuleTable(
    "operators/quantized and oneDNN",
    (
        Pattern(
            "about packed weights",
            None,
            r"^_?quantized::conv\w*_(stride|padding|dilation|groups|transpose|unpack_sizes)$",
        ),
        Pattern("about oneDNN", None, r"^mkldnn::(_is_|_nbytes|_get_mkldnn|data_ptr)"),
        Pattern("packing", MOVEMENT, _QUANTIZED_NAMESPACE + r"\w*(prepack|unpack|reorder|pack_gemm|make_quantized)"),
        Pattern("look-up and concatenation", MOVEMENT, r"^(_?quantized|onednn)::q?(embedding|cat)"),
        Pattern(
            "product with epilogue",
            CONTRACTION,
            _QUANTIZED_NAMESPACE + r"\w*(conv|linear|matmul|lstm|gru|rnn)\w*(relu|add|tanh|pointwise)",
            contains=(ELEMENTWISE,),
        ),
        Pattern("product", CONTRACTION, _QUANTIZED_NAMESPACE + r"\w*(conv|linear|matmul|lstm|gru|rnn|int4mm)"),
        Pattern("norm and pooling", NORMALIZATION, r"^(_?quantized|onednn)::\w*(norm|softmax|pool)"),
        Pattern("map", ELEMENTWISE, r"^(_?quantized|onednn|quantization)::"),
        Pattern(
            "bitsandbytes, product",
            CONTRACTION,
            r"^bitsandbytes::\w*(linear|matmul|gemv|gemm|mm_)",
            delegates=True,
        ),
        Pattern("bitsandbytes, map", ELEMENTWISE, r"^bitsandbytes::\w*(dequant|optimizer_update)"),
        Pattern("bitsandbytes, quantization", NORMALIZATION, r"^bitsandbytes::\w*quant", delegates=True),
    ),
    namespaces=frozenset(
        {
            "_quantized",
            "quantized",
            "onednn",
            "mkldnn_prepacked",
            "mkl",
            "mkldnn",
            "sparse",
            "xnnpack",
            "prepacked",
            "quantization",
            "bitsandbytes",
        }
    ),
)

_TORCH = RuleTable(
    "operators/torch",
    (
        Pattern("inductor, product", CONTRACTION, r"^inductor::_mm_plus_mm$"),
        Pattern("inductor, accumulation", ELEMENTWISE, r"^inductor::accumulate_grad_$", delegates=True),
        Pattern(
            "bookkeeping",
            None,
            r"^(inductor|inductor_prims|debugprims|debug_mode_ops|export|profiler|prim|higher_order|_test)::",
        ),
        Pattern(
            "prims, map",
            ELEMENTWISE,
            r"^rngprims::"
            r"|^prims::(normal|uniform|bessel_|cbrt|erf_inv|shift_|maximum_value|minimum_value|spherical_bessel)",
        ),
        Pattern(
            "prims, movement",
            MOVEMENT,
            r"^prims::(convert_element_type|device_put|copy_|iota|rev|clone|cat|resize)",
        ),
        Pattern("prims, reduction", NORMALIZATION, r"^prims::xor_sum"),
        Pattern("prims, other", OTHER, r"^prims::(svd|fft_)"),
        Pattern("prims, view", None, r"^prims::"),
        Pattern("static runtime, map", ELEMENTWISE, r"^static_runtime::(clamp_nan_to_num|signed_log1p)"),
        Pattern("static runtime, copy", MOVEMENT, r"^static_runtime::(to_|\w*_copy|select_tensor)", delegates=True),
        Pattern("static runtime", None, r"^static_runtime::"),
        Pattern("torchvision, regions", NORMALIZATION, r"^torchvision::_?(ps_)?roi_(align|pool)"),
        Pattern("torchvision, convolution", CONTRACTION, r"^torchvision::_?deform_conv2d"),
    ),
    namespaces=frozenset(
        {
            "inductor",
            "inductor_prims",
            "debugprims",
            "debug_mode_ops",
            "export",
            "profiler",
            "prim",
            "higher_order",
            "_test",
            "rngprims",
            "prims",
            "static_runtime",
            "torchvision",
        }
    ),
)

LIBRARIES: tuple[RuleTable, ...] = (_COMMUNICATION, _ATTENTION, _FUNCTIONS, _FBGEMM, _QUANTIZED, _TORCH)

RANGES = RuleTable(
    "operators/ranges",
    (
        Pattern("autograd node", None, r"^autograd::engine::|^torch::(autograd|jit)::|Backward\d*$"),
        Pattern("distributed wrapper", None, r"^torch(\.|::)\w+|^(FSDP|DDP)\w*(::|\.)"),
        # The name of a dispatcher operator is `namespace::name`, without blanks and brackets.
        Pattern("range", None, r"[\s<>|()/#]|^(?!.*::)", annotation=True),
    ),
)

WORDS = RuleTable(
    "operators/words",
    (
        Pattern(
            "collective",
            COMMUNICATION,
            r"(?i)all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|::(broadcast|barrier)_?$|custom_ar|nvshmem"
            r"|::(intra|inter)node_",
            delegates=True,
        ),
        Pattern(
            "weight layout",
            MOVEMENT,
            r"(?i)prepack|repack|unpack|weight_pack|reorder|marlin_permute|swizzle",
            delegates=True,
        ),
        Pattern(
            "KV cache",
            MOVEMENT,
            r"(?i)kv_?cache(?!\w*attn)|and_cache|(swap|copy)_blocks|cache_(copy|update|gather)|gather_cache|cp_gather",
            delegates=True,
        ),
        Pattern(
            "attention",
            CONTRACTION,
            r"(?i)attention|attn|fmha|sdpa|[_:]flash(_(?!infer)|$)|(^|[_:])(flash_)?mla_|mha_(fwd|bwd|varlen)|paged_",
            delegates=True,
            contains=_SOFTMAX,
        ),
        Pattern(
            "product",
            CONTRACTION,
            r"(?i)(?<!fb)gemm|gemv|matmul|(^|[_:])(scaled_|grouped_|b|int8_|fp8_|w8a8_|block_)?mm(_|$)|einsum|spmm"
            r"|wvsplitk|llmm1|(^|[_:])linear(_|$)|(^|[_:])(causal_|d|deform_)?conv(olution)?(\dd)?(_|$)|segment_mm",
            delegates=True,
        ),
        Pattern("experts", CONTRACTION, r"(?i)fused_moe|fused_experts|moe_forward|moe_wna16", delegates=True),
        Pattern(
            "quantization with a maximum of its own",
            NORMALIZATION,
            r"(?i)(dynamic|per_token|per_group|per_block|group|blockwise|rowwise|vectorwise|channelwise|mxfp\d|fp4)\w*(?<!de)quant"
            r"|(?<!de)quantize_(blockwise|4bit|fp4|mx)|scaled_fp4_quant",
            delegates=True,
        ),
        Pattern(
            "quantization",
            ELEMENTWISE,
            r"(?i)dequant|(^|[_:])(static_)?(scaled_)?(fp8|int8)?_?quant",
            delegates=True,
        ),
        Pattern(
            "norm, loss, reduction",
            NORMALIZATION,
            r"(?i)norm(_|\d|$)|softmax|cross_entropy|loss(_|$)|cumsum|logsumexp|moe_sum|pool(ing)?(\dd)?(_|$)"
            r"|(^|[_:])(sum|mean|amax|argmax|reduce)(_|$)",
            delegates=True,
        ),
        Pattern(
            "map",
            ELEMENTWISE,
            r"(?i)silu|gelu|swiglu|geglu|relu|sigmoid|tanh|rotary|(^|[_:])rope|dropout|adam|adagrad|elementwise"
            r"|pointwise"
            r"|(^|[_:])(glu|sgd|lamb|lion|muon|bias|scale|add|mul|clamp|mask|activation|gating|unscale)(_|$)",
            delegates=True,
        ),
        Pattern(
            "sort, selection, sampling, scan",
            OTHER,
            r"(?i)selective_scan|(^|[_:])(ssd|ssm|wkv|scan|delta_rule|nms)(_|$)|sort|top_?k|unique|(^|[_:])sampl"
            r"|bincount|histogram|searchsorted|bucketize|moe_align|penalt",
            delegates=True,
        ),
        Pattern(
            "copy, look-up, layout",
            MOVEMENT,
            r"(?i)copy|gather|scatter|permut|transpose|embedding|index|shuffle"
            r"|(^|[_:])(cast|pad|cat|concat|fill|roll|flip|stack|pack|clone|jagged|zero)(_|$)",
            delegates=True,
        ),
    ),
)
