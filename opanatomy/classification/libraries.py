"""Names outside ATen: libraries, then ranges and autograd nodes, then the words of an operator nobody listed.

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

_COMMUNICATION = RuleTable(
    "operators/communication",
    (
        Pattern(r"^symm_mem::(fused_\w*(matmul|mm)|_async_input_mm)", CONTRACTION, delegates=True, contains=(COMMUNICATION,)),
        Pattern(r"^symm_mem::(memset32_|_rendezvous|stream_write_value32_)", MOVEMENT),
        Pattern(r"^(nccl|gloo|ucc|mpi|xccl|rccl|hccl|cncl|nccl2):", COMMUNICATION),
        Pattern(r"^record_param_comms", COMMUNICATION),
        Pattern(r"^(c10d|_c10d_functional|_c10d_functional_autograd|c10d_functional|symm_mem|_dtensor)::", COMMUNICATION),
        Pattern(r"^fsdp::(all_gather_copy_in|split_with_sizes_copy|chunk_cat|copy_)", MOVEMENT, delegates=True),
        Pattern(r"^fsdp::", COMMUNICATION),
        Pattern(r"^fbgemm::(all_to_one_device|car_|nccl_|(one|two)_shot)", COMMUNICATION),
        Pattern(r"^(torch_ucc|torch_ccl|oneccl_bindings\w*|deepspeed_comm)::", COMMUNICATION),
    ),
)

_ATTENTION = RuleTable(
    "operators/attention libraries",
    (
        Pattern(r"^flash_attn(_\w+)?::", CONTRACTION, contains=(NORMALIZATION,)),
        Pattern(r"^_(vllm_fa\d|flashmla)\w*::(fwd|varlen_fwd|bwd|varlen_bwd|\w*mla\w*)", CONTRACTION, contains=(NORMALIZATION,)),
        Pattern(r"^_(vllm_fa\d|flashmla)\w*::", OTHER),
        Pattern(r"^natten\w*::|^sageattn\w*::", CONTRACTION, contains=(NORMALIZATION,)),
        Pattern(r"^xformers(_\w+)?::\w*(attention|fmha)", CONTRACTION, contains=(NORMALIZATION,)),
        # Python autograd functions around extensions: their kernels are launched by the function or its node itself.
        Pattern(r"^_?(Flash|Sage|Ring|Ulysses|Memory[Ee]fficient|FusedAttn|CPAttn)\w*Attn\w*(Backward\d*)?$", CONTRACTION, contains=(NORMALIZATION,)),
        Pattern(r"^_?(Flash|FusedAttn|AttnFuncWith|BlockSparse)\w*(Func|Function)(Backward\d*)?$", CONTRACTION, contains=(NORMALIZATION,)),
    ),
)

_FUNCTIONS = RuleTable(
    "operators/autograd functions of libraries",
    (
        Pattern(r"^Liger\w*(Norm|CrossEntropy|KLDiv|JSD|Softmax|Loss|Sparsemax)\w*Function(Backward)?$", NORMALIZATION, delegates=True),
        Pattern(r"^Liger\w*(SiLUMul|GELUMul|Swiglu|SwiGLU|GeGLU|Rope|RoPE|RotaryEmb|DyT|MRope|Qwen2VLMRope)\w*Function(Backward)?$", ELEMENTWISE, delegates=True),
        Pattern(r"^(Fused|Fast|Mixed|Manual)?\w*(LayerNorm|RMSNorm|RmsNorm|GroupNorm)\w*(Function|Func|Fn)(Backward)?$", NORMALIZATION, delegates=True),
        Pattern(r"^\w*Softmax\w*(Function|Func|Fn)?(Dropout)?(Backward)$|^(Generic)?Scaled\w*Softmax\w*$", None),
        Pattern(r"^SyncBatchNorm(Backward)?$", NORMALIZATION, delegates=True),
        Pattern(r"^MatMul(4Bit|8bitLt|8bit)(Backward)?$", CONTRACTION, delegates=True),
        Pattern(r"^CausalConv1dFn(Backward)?$|^causal_conv1d\w*(Backward)?$", CONTRACTION, delegates=True),
        Pattern(r"^SelectiveScanFn(Backward)?$", OTHER, delegates=True),
    ),
)

_FBGEMM = RuleTable(
    "operators/fbgemm",
    (
        Pattern(r"^(fb|fbgemm)::.*(bmm|gemm|f8f8bf16|bf16i4|f8i4|i8i8|f4f4|mx8mx8|_mm_|matmul|index_select_scalar_cumsum_mm)", CONTRACTION, delegates=True),
        Pattern(r"^(fb|fbgemm)::.*(Quantized\w*ToFloat|QuantizedToHalf|ToFloatOrHalf|dequantize|Half_?Precision)", ELEMENTWISE),
        Pattern(r"^(fb|fbgemm)::.*(Rowwise|NBit|PaddedFP8|MSFP|quantize_\w*per_(row|tensor|col|group)|get_fp8_per)", NORMALIZATION),
        Pattern(r"^(fb|fbgemm)::.*(Quantized|quantize|FloatTo|HFP8|Bfloat16)", ELEMENTWISE),
        Pattern(r"^(fb|fbgemm)::.*(cumsum|segment_sum|softmax|rms_norm|layer_norm|reduce|histogram_loss)", NORMALIZATION, delegates=True),
        Pattern(r"^(fb|fbgemm)::.*(jagged_dense\w*(add|mul)|jagged_jagged_elementwise|bounds_check|offsets_range|rope|swiglu|silu)", ELEMENTWISE, delegates=True),
        Pattern(r"^(fb|fbgemm)::.*(sort|unique|topk|linearize|lxu_cache|lru_cache|lfu_cache|uvm|cuda_mem|invert_permute|find_)", OTHER, delegates=True),
        Pattern(r"^(fb|fbgemm)::.*(embedding|permute|recat|bucketize|jagged|dense_to|index|gather|scatter|cat|select|copy|expand|repeat|pack|lengths|segment|transpose|ssd|to_dense|fast_gather)", MOVEMENT, delegates=True),
    ),
)  # fmt: skip

_QUANTIZED = RuleTable(
    "operators/quantized",
    (
        Pattern(r"^(_?quantized|onednn|mkldnn_prepacked|mkl|mkldnn|sparse|xnnpack|prepacked|torchao)::\w*(prepack|unpack|reorder|pack_gemm|make_quantized|unpacked_sizes|nbytes|serialized|_is_|data_ptr)", MOVEMENT),
        Pattern(r"^(_?quantized)::conv\w*_(stride|padding|dilation|groups|transpose|output_padding|unpack_sizes)$", None),
        Pattern(r"^(_?quantized|onednn)::(embedding\w*|cat\w*|q?cat\w*)", MOVEMENT),
        Pattern(r"^(_?quantized|onednn)::\w*(conv|linear|matmul|lstm|gru|rnn|int4mm)\w*(relu|add|tanh|pointwise|leaky)", CONTRACTION, contains=(ELEMENTWISE,)),
        Pattern(r"^(_?quantized|onednn|mkl|mkldnn|mkldnn_prepacked|sparse|xnnpack|prepacked)::\w*(conv|linear|matmul|lstm|gru|rnn|int4mm)", CONTRACTION),
        Pattern(r"^(_?quantized|onednn)::\w*(batch_norm|layer_norm|group_norm|instance_norm|softmax|max_pool|avg_pool)", NORMALIZATION),
        Pattern(r"^(_?quantized|onednn|quantization)::", ELEMENTWISE),
        Pattern(r"^bitsandbytes::\w*(linear|matmul|gemv|gemm|mm_)", CONTRACTION, delegates=True),
        Pattern(r"^bitsandbytes::\w*(dequant|optimizer_update)", ELEMENTWISE),
        Pattern(r"^bitsandbytes::\w*quant", NORMALIZATION, delegates=True),
    ),
)  # fmt: skip

_TORCH = RuleTable(
    "operators/torch",
    (
        Pattern(r"^inductor::_mm_plus_mm$", CONTRACTION),
        Pattern(r"^inductor::accumulate_grad_$", ELEMENTWISE, delegates=True),
        Pattern(r"^(inductor|inductor_prims|debugprims|debug_mode_ops|export|profiler|prim|higher_order|_test)::", None),
        Pattern(r"^(rngprims::|prims::(normal|uniform|bessel_|cbrt|erf_inv|imag|real|shift_|maximum_value|minimum_value))", ELEMENTWISE),
        Pattern(r"^prims::(convert_element_type|device_put|copy_to|copy_strided|iota|rev|clone|cat|resize|xor_sum)", MOVEMENT),
        Pattern(r"^prims::(svd|fft_)", OTHER),
        Pattern(r"^prims::", None),
        Pattern(r"^static_runtime::(clamp_nan_to_num|signed_log1p|fused_)", ELEMENTWISE),
        Pattern(r"^static_runtime::(to_|\w*_copy|dequantize_copy|select_tensor)", MOVEMENT, delegates=True),
        Pattern(r"^static_runtime::", None),
        Pattern(r"^torchvision::(nms|_?nms\w*)", OTHER),
        Pattern(r"^torchvision::_?(ps_)?roi_(align|pool)", NORMALIZATION),
        Pattern(r"^torchvision::_?deform_conv2d", CONTRACTION),
        Pattern(r"^torchao::\w*(mm|linear|gemm|conv)", CONTRACTION, delegates=True),
    ),
)  # fmt: skip

LIBRARIES: tuple[RuleTable, ...] = (_COMMUNICATION, _ATTENTION, _FUNCTIONS, _FBGEMM, _QUANTIZED, _TORCH)

RANGES = RuleTable(
    "operators/ranges",
    (
        Pattern(r"^autograd::engine::|^torch::autograd::|^torch::jit::", None),
        Pattern(r"^torch(\.|::)(distributed|nn|optim|_dynamo|_inductor|profiler)", None),
        Pattern(r"Backward\d*$", None),
        Pattern(r"^(Optimizer\.|ProfilerStep|enumerate\(|opanatomy\.|FSDP::|DDP|nn\.Module|CompiledFunction|Torch-Compiled)", None),
        # What follows is not the name of a dispatcher operator: those are `namespace::name`, one word.
        Pattern(r"[\s<>|()/#]", None),
        Pattern(r"^(?!.*::)", None),
    ),
)  # fmt: skip

WORDS = RuleTable(
    "operators/words",
    (
        Pattern(r"(?i)all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|::(broadcast|barrier|dispose|init_custom_ar)_?$|custom_ar|nvshmem|::(intra|inter)node_", COMMUNICATION, delegates=True),
        Pattern(r"(?i)prepack|repack|unpack|weight_pack|reorder|marlin_permute|swizzle", MOVEMENT, delegates=True),
        Pattern(r"(?i)kv_?cache|and_cache|swap_blocks|copy_blocks|cache_(copy|update|gather)|gather_cache|cp_gather", MOVEMENT, delegates=True),
        Pattern(r"(?i)attention|attn|fmha|sdpa|(^|_|:)(flash_)?mla_|mha_(fwd|bwd|varlen)|unified_attn|paged_", CONTRACTION, delegates=True, contains=(NORMALIZATION,)),
        Pattern(r"(?i)gemm|gemv|matmul|(^|_|:)(scaled_|grouped_|b|int8_|fp8_|w8a8_|block_)?mm(_|$)|einsum|(^|_|:)linear(_|$)|(^|_|:)conv(olution)?(\dd)?(_|$)|causal_conv|_dconv|dynamic_?conv|fused_moe|fused_experts|moe_forward|moe_wna16|spmm|wvsplitk|llmm1|segment_mm", CONTRACTION, delegates=True),
        Pattern(r"(?i)(dynamic|per_token|per_group|per_block|group|blockwise|rowwise|vectorwise|channelwise|mxfp\d|nvfp4|fp4)\w*quant|quantize_(blockwise|4bit|fp4|mx)|scaled_fp4_quant", NORMALIZATION, delegates=True),
        Pattern(r"(?i)dequant|(^|_|:)(static_)?(scaled_)?(fp8|int8)?_?quant", ELEMENTWISE, delegates=True),
        Pattern(r"(?i)norm(_|$)|softmax|cross_entropy|(^|_|:)\w*loss|cumsum|logsumexp|moe_sum|(^|_|:)(sum|mean|max_?pool\w*|avg_?pool\w*|pool|amax|argmax|reduce)(_|$)", NORMALIZATION, delegates=True),
        Pattern(r"(?i)silu|gelu|swiglu|geglu|relu|sigmoid|tanh|(^|_)glu|rotary|rope|dropout|adam|adagrad|(^|_|:)(sgd|lamb|lion|muon|bias|scale|add|mul|clamp|mask|activation|gating|unscale|elementwise|pointwise)(_|$)", ELEMENTWISE, delegates=True),
        Pattern(r"(?i)selective_scan|(^|_|:)(ssd|ssm|wkv|scan|delta_rule)|sort|topk|top_k|unique|nms|sampl|bincount|histogram|searchsorted|bucketize|moe_align|penalt", OTHER, delegates=True),
        Pattern(r"(?i)copy|gather|scatter|permut|transpose|embedding|index|(^|_|:)(cast|to|pad|cat|concat|fill|shuffle|roll|flip|stack|pack|clone|jagged|zero)(_|$)|shuffle", MOVEMENT, delegates=True),
    ),
)  # fmt: skip
