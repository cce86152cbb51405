"""Classify device events by name alone: compiled names first, then the ordered tables."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from msgspec import Struct

from opanatomy.classification.operators import (
    COMMUNICATION,
    CONTRACTION,
    ELEMENTWISE,
    FAMILIES,
    LIBRARIES,
    LONGEST,
    MOVEMENT,
    NORMALIZATION,
    OTHER,
    RANGES,
    UNKNOWN,
    WORDS,
    Pattern,
    RuleBook,
    RuleTable,
    classify_compiled,
    compiled,
    first_match,
)
from opanatomy.records.patterns import regex
from opanatomy.records.signature import Classification
from opanatomy.records.taxonomy import BY_CPP_NAME, FLOAT32, TF32, THREE_TF32

# --- kernel names by class: the first expression that matches decides ---
#
# The order goes from unmistakable names (copies, collectives, ATen's own wrappers) to vague ones (words in an unlisted
# name). A fill inside a max-pool is launched by an operator, whose class it takes; here only the name counts. Kernels
# that libraries launch only for a contraction (split-K sums, cuDNN's tables of offsets, Winograd transforms) are part
# of that contraction; its layout changes are data movement.


_SOFTMAX = (NORMALIZATION,)

_RUNTIME = RuleTable(
    "kernels/runtime",
    (
        Pattern("memcpy between devices", COMMUNICATION, r"^Memcpy (PtoP|P2P)"),
        Pattern("memcpy and memset", MOVEMENT, r"^(Memcpy|Memset)\b"),
        Pattern(
            "copies on AMD",
            MOVEMENT,
            r"^(hip|cuda|cu)?(Copy|Mem(cpy|set))(Host|Device|Peer|Array|Async|D\d|\d|$)",
        ),
        Pattern("fills on AMD", MOVEMENT, r"^Fill(Buffer)?$|^__amd_rocclr_(copy|fill)"),
    ),
)

_COMMUNICATION = RuleTable(
    "kernels/communication",
    (
        Pattern(
            "collective libraries",
            COMMUNICATION,
            r"^(nccl|rccl|msccl|nvshmem|ishmem|nvls|oneccl|ccl_|ucc_|quickreduce|k?userbuffers_)|ncclDev|ncclKernel"
            r"|ncclSym|rcclGeneric|mscclKernel|nvshmemi?x?_"
            r"|^c10d::(symmetric_memory|nvshmem_extension|ishmem_extension|intra_node_comm)::",
        ),
        # DeepEP, by its name within DeepSeek too (but not CUB's kernels, whose namespace repeats that), MORI,
        # TensorRT-LLM.
        Pattern(
            "expert parallel libraries",
            COMMUNICATION,
            r"^(deep_ep|dpsk::ep)::(?!CUB_)|^(mori::\w+::)?Ep(Dispatch|Combine)\w*|(?i:moe_?a2a)",
        ),
        Pattern(
            "custom all-reduce",
            COMMUNICATION,
            r"(?i)cross_device_reduce|multimem_|symm_?mem"
            r"|(one|two|1|2)_?(shot|stage)_?(push_?)?(all_?reduce|all_?gather|reduce)",
        ),
        Pattern(
            "name of a collective",
            COMMUNICATION,
            r"(?i)^(?!.*(gemm|matmul)).*(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)",
        ),
    ),
    own_name=True,
)

#: ATen's wrappers that run a functor over elements: the functor, a template argument, decides.
_MAP = (
    r"^[\w:]*(?:[eE]lementwise_?[kK]ernel|kernelPointwiseApply|unrolled_elementwise|distribution_|jitted_gpu_kernel"
    r"|vectorized\d?_kernel)"
)

_ATEN = RuleTable(
    "kernels/aten",
    (
        Pattern("element-wise: mask", ELEMENTWISE, _MAP + r".*(masked_fill|where_kernel)"),
        Pattern(
            "element-wise: copy",
            MOVEMENT,
            _MAP + r".*(direct_copy_kernel|Copy\w*Func|copy_device_to_device|float\w*_copy_kernel"
            r"|copy_kernel_cuda|CastFunctor)",
        ),
        Pattern(
            "element-wise: fill", MOVEMENT, _MAP + r".*(FillFunctor|fill_kernel|(arange|linspace|logspace|range)_cuda)"
        ),
        Pattern(
            "element-wise: index",
            MOVEMENT,
            _MAP + r".*(gpu_index_kernel|index_(kernel|put|copy|fill)|(take|put|flip|roll)_kernel|scatter_gather|"
            r"masked_scatter|unfold_backward|upsample_nearest)",
        ),
        Pattern(
            "element-wise: part of a norm",
            NORMALIZATION,
            _MAP + r".*((batch|group|layer)_norm|(Batch|Group|Layer|Weight)Norm|softmax)",
        ),
        Pattern(
            "element-wise: part of a loss",
            NORMALIZATION,
            _MAP + r".*(mse_|smooth_l1|huber|binary_cross_entropy|soft_margin|kl_div|cdist|renorm)",
        ),
        Pattern(
            "element-wise: scatter and gather",
            MOVEMENT,
            r"^[\w:]*(index_elementwise_kernel|_scatter_gather_elementwise_kernel)",
        ),
        Pattern("element-wise", ELEMENTWISE, _MAP),
        Pattern(
            "reduction",
            NORMALIZATION,
            r"^(?:[\w:]*::)?([rR]educe_?[kK]ernel\w*<|jitted_reduce)|^_ZN2at\w*reduce_kernelI|func_wrapper_t",
        ),
        Pattern(
            "norms of a tensor list",
            NORMALIZATION,
            r"^[\w:]*multi_tensor_apply_kernel.*((L1|L2|Lp|Max)Norm|LpMax|PowSum|(Max|Sum)Functor)"
            r"|^[\w:]*((lpnorm|lpmax|powsum)_cleanup|cleanup(_v\d)?<)",
        ),
        Pattern("copies of a tensor list", MOVEMENT, r"^[\w:]*multi_tensor_apply_kernel.*(Copy|Fill|Zero)(Functor)?<"),
        Pattern("element-wise over a tensor list", ELEMENTWISE, r"^[\w:]*multi_tensor_apply"),
    ),
)

#: Generic kernels whose template arguments name their work.
_PARALLEL = r"^[\w:]*(rocprim|thrust|hipcub|_kernel_agent|trampoline_kernel)"

_TEMPLATES = RuleTable(
    "kernels/templates",
    (
        # CuTe DSL writes one word with the Python names of the kernel inside.
        Pattern("CuTe DSL norm", NORMALIZATION, r"^kernel_cutlass_.*(?i:norm|softmax|reduc)"),
        Pattern(
            "attention in CUTLASS or CK",
            CONTRACTION,
            r"^[\w:]*(cutlass|ck_tile|cute|flash|fmha).*(?i:fmha|flash(?!infer)|attention|attn|mla_|sdpa)",
            contains=_SOFTMAX,
        ),
        Pattern("CK norm", NORMALIZATION, r"^(_ZN7ck_tile|ck_tile::).*(Rmsnorm|Layernorm|Softmax|Reduce|Smoothquant)"),
        Pattern("CK routing", OTHER, r"^(_ZN7ck_tile|ck_tile::).*(MoeSorting|Topk)"),
        Pattern("CK layout", MOVEMENT, r"^(_ZN7ck_tile|ck_tile::).*(Permute|ImageToColumn|Im2Col|Transpose)"),
        Pattern("CK contraction", CONTRACTION, r"^(_ZN2ck|ck::).*([gG]emm|[cC]onv)"),
        Pattern("CK reduction", NORMALIZATION, r"^(_ZN2ck|ck::).*([sS]oftmax|[nN]ormalization|[rR]educ|[pP]ool)"),
        Pattern("CK element-wise", ELEMENTWISE, r"^(_ZN2ck|ck::).*[eE]lementwise"),
        Pattern("CUTLASS or CK", CONTRACTION, r"^(?!kernel_cutlass_)[\w:]*(cutlass(?!_kernels)|ck_tile)"),
        Pattern(
            "parallel sort and select",
            OTHER,
            _PARALLEL + r".*(?i:sort|unique|partition|select|by_?key|histogram|adjacent_diff|_bound|search)",
        ),
        Pattern("parallel scan and reduce", NORMALIZATION, _PARALLEL + r".*(?i:scan|reduce)"),
        Pattern("parallel copy", MOVEMENT, _PARALLEL + r".*(?i:fill|copy|gather|scatter)"),
        Pattern("parallel element-wise", ELEMENTWISE, _PARALLEL),
    ),
)

_ATTENTION = RuleTable(
    "kernels/attention and softmax",
    (
        Pattern(
            "FlashInfer and AITER",
            CONTRACTION,
            r"(Batch|Single)(Prefill|Decode|MLA|POD)\w*With|(Batch|Single|Holistic)\w*Attention|MergeStates"
            r"|_ZN5aiter\d+(pa|mla)_",
            contains=_SOFTMAX,
        ),
        Pattern(
            "KV cache and masks",
            MOVEMENT,
            r"(?i)kv_?cache|(reshape|concat)_and_cache|cache_kernel|(attention|attn)_mask",
        ),
        Pattern("softmax", NORMALIZATION, r"(?i)^(?!.*(fmha|flash|attention)).*softmax"),
        Pattern(
            "attention",
            CONTRACTION,
            r"(?i)fmha|sdpa|flash_?(fwd|bwd|attn|decod|mla)|(^|:)flash(_\w+)?::|attention|attn|mha_(fwd|bwd|kernel)"
            r"|(^|[_:])mla_",
            contains=_SOFTMAX,
        ),
        Pattern(
            "Triton's attention tutorial, as copied into many libraries",
            CONTRACTION,
            r"^_?(fwd|bwd)_(grouped_)?kernel(_(stage\d|aligned|one_col_block|dk_?dv|d?[qkv]|d?kv|splitK|destindex_copy_kv))?$"
            r"|^_bwd_(preprocess|d[kqv])",
            contains=_SOFTMAX,
        ),
        Pattern("vLLM's attention, sum over splits", CONTRACTION, r"^reduce_segments$", contains=_SOFTMAX),
    ),
    own_name=True,
)

_CONTRACTION = RuleTable(
    "kernels/contraction",
    (
        Pattern(
            "cuBLAS, other kernels",
            CONTRACTION,
            r"(?i)split_?k_?reduce|cublas|epilogue::impl|gemvx|(^|:)(dot|scal|axpy|asum)_kernel$|reduce_1Block_kernel",
        ),
        Pattern(
            "layout changes around a matmul",
            MOVEMENT,
            r"(?i)(nchw|nhwc)\w*to(nchw|nhwc)|^batched_transpose_\w+(half|dword|byte)$|transpose_(readWrite|nchw2|cnhw2)"
            r"|tensorTransform|im2(d2)?col|SubTensorOpWith|marlin\w*::\w*(repack|permute)|machete\w*::\w*prepack"
            r"|deep_gemm::(\w+::)?(transpose|pack)_",
        ),
        Pattern(
            "convolution libraries, helper kernels",
            CONTRACTION,
            r"(?i)scalePackedTensor|compute\w*Offsets|kern_precompute",
            contains=(MOVEMENT,),
        ),
        Pattern(
            "cuDNN's FFT convolution",
            CONTRACTION,
            r"^fft2d_[rc]2[rc]_\d+x\d+|pointwise_mult_and_sum_complex|flip_filter",
        ),
        Pattern("sum of expert outputs", MOVEMENT, r"(?i)finalize_?(matmul_scatter|moe)|moe::\w*::?finalize"),
        Pattern(
            "GEMM libraries",
            CONTRACTION,
            r"nvjet|Cijk_|xmma_|tensorop_|(?i:marlin|machete|wv_?splitk|llmm1|stream_?k)",
        ),
        Pattern(
            "convolution libraries",
            CONTRACTION,
            r"(?i)scudnn|[hi]cudnn|cask_cudnn|cudnn::(cnn|winograd)|[fd]grad|wgrad|fprop|winograd|implicit_?gemm"
            r"|igemm|gcnAsm\w*Conv|MIOpenConv|Sp3Asm",
        ),
        Pattern("convolution", CONTRACTION, r"(^|[^a-zA-Z])(de|d)?conv(?!ert)|[a-z]Conv(?!ert)|[cC]onvol"),
        Pattern(
            "matrix product",
            CONTRACTION,
            r"(?i)(?<!fb)gemm|gemv|matmul|(^|[^a-z])(b|s|grouped_?|scaled_?|int8_?|fp8_?)?mm(_|\d|$)"
            r"|(^|[_:])[a-z]?(syrk|herk|trmm)|einsum|wgmma|(csr|coo|bsr|sp)m[mv](_|$)|sddmm|mul_mat",
        ),
        # Triton kernels of Muon's Newton-Schulz step, under these names in modded-nanogpt and its many descendants.
        Pattern("matmuls of Muon", CONTRACTION, r"^_?(XXT|XTX|ba_plus_cAA)_kernel"),
        Pattern(
            "linear layer with activation",
            CONTRACTION,
            r"(?i)(^|[_:])linear_(relu|gelu|silu|swish|tanh|bias)",
            contains=(ELEMENTWISE,),
        ),
        Pattern("experts", CONTRACTION, r"(?i)fused_moe|fmoe|moe_kernel|moe_mma"),
        Pattern(
            "recurrent layer",
            CONTRACTION,
            r"(?i)rnn_?(block)?_?persist|persist_?rnn|(^|[^a-z])rnn_|RNN_\w*(fp|bp)_",
            contains=(ELEMENTWISE,),
        ),
        Pattern(
            "chunked linear attention: block matmuls",
            CONTRACTION,
            r"^_?chunk_(scan|state)_\w*(fwd|bwd)|(^|_)chunk_(?!\w*cumsum)\w*(fwd|bwd)\w*kernel",
        ),
    ),
    own_name=True,
)

_OTHER = RuleTable(
    "kernels/other",
    (
        Pattern(
            "linear algebra",
            OTHER,
            r"(?i)potr[fsi]|getr[fsi]|geqr|syev|heev|gesv|trs[mv]|trtri|larf[bgt]|laswp|sytr|gebrd|steqr|cusolver"
            r"|rocsolver|cholesky|householder",
        ),
        Pattern("FFT and similar transforms", OTHER, r"(?i)(^|[^a-z])(vk|cu|roc)?fft|_fft|hadamard_transform"),
        Pattern(
            "sort",
            OTHER,
            r"(?i)(radix|merge|block|bitonic|segmented|count|and)_?(sort|rank)|(^|[_:])sort|onesweep|(?-i:[a-z]Sort)",
        ),
        Pattern(
            "selection and counting",
            OTHER,
            r"(?i)top_?k|(^|:)write_indices|k_?th_?value|gather_?median|radix_?find|compute_?mode|searchsorted|bucketize|nonzero|unique"
            r"|adjacent_?difference|histogram|bincount|Device(Select|Compact|Partition)|RunLength|by_?key|(^|[_:])nms",
        ),
        Pattern("expert routing", OTHER, r"(?i)routing|moe_?sort|moe_?align|align_block_size|bitmatrix"),
        Pattern("sampling", OTHER, r"(?i)multinomial|randperm|(^|[_:])sampl(e|ing)(?!r)|(?-i:Sampling)|penalt"),
        Pattern("selective scan", OTHER, r"(?i)selective_scan|(^|_)ssm_|state_passing|wkv|fused_recurrent"),
    ),
    own_name=True,
)

_LOOKUP = RuleTable(
    "kernels/look-up",
    (
        Pattern("rotary embedding", ELEMENTWISE, r"(?i)rotary|(^|[_:])m?rope(_|\d|$)|[a-z]rope_"),
        Pattern("embedding", MOVEMENT, r"(?i)^(?!.*norm).*(embedding|(^|[_:])embs?_|_embs?_)"),
    ),
    own_name=True,
)

_NORMALIZATION = RuleTable(
    "kernels/normalization",
    (
        Pattern(
            "norm",
            NORMALIZATION,
            r"(?i)(rms|layer|batch|group|instance)_?norm|(^|[^a-z])(ln|bn|gn)_(fwd|bwd|fw|bw|parallel)|norm(_|\d|$|:)"
            r"|bnorm|MIOpen\w*Norm|MIOpenLRN|welford",
        ),
        Pattern(
            "norm, partial kernels",
            NORMALIZATION,
            r"RowwiseMoments|GammaBeta|Compute(Internal|Fused|Backward|1d)\w*(Gradients|Params)|Compute1dBackward"
            r"|cuCompute\w*Grad",
        ),
        Pattern(
            "loss",
            NORMALIZATION,
            r"(?i)cross_?entropy|softcapped_?entropy|nll_?loss|NLLCriterion|(^|[_:])ctc_|margin_?loss|Multi(Label)?Margin|_loss(_|$)"
            r"|(^|_)loss_|kl_?div|(^|_)jsd|log_?sum_?exp",
        ),
        Pattern(
            "pooling",
            NORMALIZATION,
            r"(?i)(max|avg|average|adaptive|fractional)_?pool|pooling|mloPool|adaptive_?(average|max)"
            r"|roi_?(align|pool)|(^|[_:])pool",
        ),
        Pattern(
            "quantization that computes its own maximum",
            NORMALIZATION,
            r"(?i)(dynamic|per_?token|per_?group|per_?block|group|blockwise|block_scaled|rowwise|vector|mxfp\d|nvfp4|fp4|smooth)\w*(?<!de)quant"
            r"|VectorQuant|(?<!de)quantize_?blockwise|quantize_(with_block_size|mxfp|nvfp4)|qparam|(^|[_:])amax"
            r"|absmax",
        ),
        Pattern(
            "prefix sum",
            NORMALIZATION,
            r"(?i)DeviceScan|kernel_scan|(inclusive|exclusive|segmented|lookback|prefix)_?(scan|sum)"
            r"|cum(sum|prod|max|min)|(^|[_:])scan(_|$)|ScanInit",
        ),
        Pattern(
            "reduction",
            NORMALIZATION,
            r"(?i)DeviceReduce|SegmentedReduce|segment_reduce|(^|[_:])reduc(e|tion)|_reduce(_|$)|block_?reduce"
            r"|reduction"
            r"|(^|[_:])(row|col|moe)?_?(sum|mean|var|argmax|argmin|max|min)(_(kernel|rows|cols|dim|fwd|bwd|reduce)|$)"
            r"|nvfuser_\w*persistent|count_nonzero|cdist|pdist|renorm",
        ),
    ),
    own_name=True,
)

_MOVEMENT = RuleTable(
    "kernels/data movement",
    (
        Pattern(
            "interpolation",
            ELEMENTWISE,
            r"(?i)grid_?sampl|upsample_(bi|tri)?(linear|cubic)|upsample_gen2d|interpolat",
        ),
        Pattern("dropout", ELEMENTWISE, r"(?i)dropout|masked_scale"),
        Pattern("concatenation", MOVEMENT, r"(?i)CatArray|chunk_cat|(^|[_:])cat_|concat|stack_kernel|(^|[_:])split"),
        Pattern(
            "indexing",
            MOVEMENT,
            r"(?i)gather|scatter|index_?(select|copy|add|fill|put|reduce|ing)|indexFunc"
            r"|(^|[_:])(take|put|index|slice)_|get_rows|krn_partial|compute_grad_weight|sum_and_scatter"
            r"|linearize_index|find_long_segments|segment_offset",
        ),
        Pattern(
            "copy and fill",
            MOVEMENT,
            r"(?i)copy|memcpy|memset|(^|[_:])fill|_fill|zero_|cast|convert|repeat|compute_cuda_kernel|arange|linspace"
            r"|offsets_range|tri[ul]_indices|SetTensor|(^|[_:])set_?(tensor|value|zero)|swap_blocks",
        ),
        Pattern(
            "layout",
            MOVEMENT,
            r"(?i)transpos|permut|reshap|recat|layout|swizzle|(^|[_:])pad|_pad|(replication|reflection)_?pad"
            r"|(^|[_:])(roll|flip)|im2col|col2im|vol2col|col2vol|im2d2col|shuffle|upsample_nearest|max_unpool|unfold"
            r"|(un)?pack(ed)?(_|$)|repack|expand|jagged|dense_to|to_dense|bucketi[sz]e|_lengths",
        ),
    ),
    own_name=True,
)

_ELEMENTWISE = RuleTable(
    "kernels/elementwise",
    (
        Pattern(
            "optimizer",
            ELEMENTWISE,
            r"(?i)(?<!h)adam|adagrad|(^|[_:])(lamb|sgd|lion|muon|rmsprop|ema|amp)(_|$)|optimi[sz]er|unscale",
        ),
        Pattern(
            "activation",
            ELEMENTWISE,
            r"(?i)silu|gelu|relu|swish|swiglu|geglu|(^|_)r?e?glu|sigmoid|tanh|_and_mul|activation|gated_act"
            r"|(^|[_:])act_|lstm_cell|gru_cell|LSTM_elem|softplus|mish|Neuron(Fwd|Bwd)|(^|_)dyt_",
        ),
        Pattern(
            "random numbers",
            ELEMENTWISE,
            r"(?i)random|philox|curand|(^|[_:])rng|bernoulli|generate_seed|distribution|uniform",
        ),
        Pattern("quantization", ELEMENTWISE, r"(?i)quant|fp8\w*to_float|to_fp8"),
        Pattern(
            "arithmetic",
            ELEMENTWISE,
            r"(?i)elem(ent)?_?wise|pointwise|bias|residual|op_tensor|exponential|OpTensor|Op\dd|nan_to_num|isfinite"
            r"|bounds_check|assert_async|_(add|mul|scale)_kernel|transform|for_each|parallel_for"
            r"|(^|[_:])(add|sub|mul|div|scale|axpby|mask|where|clamp|exp|tri[lu]|element|cross|ger)(_|kernel|$|\d)",
        ),
    ),
    own_name=True,
)

KERNEL_TABLES: tuple[RuleTable, ...] = (
    _RUNTIME,
    _COMMUNICATION,
    _ATEN,
    _TEMPLATES,
    _ATTENTION,
    _CONTRACTION,
    _OTHER,
    _LOOKUP,
    _NORMALIZATION,
    _MOVEMENT,
    _ELEMENTWISE,
)


#: C++ decorations of a kernel's own name, and the suffix of Triton in 2023: `_0d1d2de` for its arguments.
_NOISE = regex(r"\(anonymous namespace\)::|<unnamed>::|^(?:static |__global__ )?void | ?\(?\.kd\)?$|_0d1[\ddec]*$")


@lru_cache(maxsize=65536)
def classify_kernel(name: str) -> Classification:
    """Classify a kernel, memcpy or memset by name; the class is `UNKNOWN` if no rule matches."""
    name = name[:LONGEST]
    return (
        classify_compiled(name)
        or first_match(KERNEL_TABLES, _NOISE.sub("", name))
        or Classification(operator_class=UNKNOWN, rule="no rule")
    )


# --- kernels on tensor cores (matrix cores on AMD), by name: the first pattern found decides ---


#: (pattern, True if it uses tensor cores).
TENSOR_CORE_RULES: Final[tuple[tuple[str, bool], ...]] = (
    # helper kernels of products that multiply no matrices
    (r"computeOffsets|computeBOffsets|computeWgrad|(?i:split_?k_?reduc)|PostGSU|BetaOnly|epilogue::impl", False),
    (r"scalePackedTensor|kern_precompute|prepare_varlen_num_blocks|mla_metadata|mla_reduce|reduce_segments", False),
    (r"(?:flash|mla)\w*_combine|flash_bwd_(?:dot_do_o|convert_d|clear|p\w+process)|_bwd_preprocess", False),
    (r"FlashAttn\w*(?:Combine|Pre|Post)|MergeStates", False),
    (r"fmha_(?:bwd|fwd)\w*(?:convert|dot_do_o|combine)|FmhaBwd(?:OGradDotO|ConvertQGrad)|FmhaFwdSplitKVCombine", False),
    # vector arithmetic: by its instructions, or in float32 and float64 by libraries that name them
    (r"_ffma_|simt|OpClassSimt|dlops|_dl_|fmha_cutlass[FB]_\w+_sm[56]\d|fmha_cutlass[FB]_f32\w*_sm7\d", False),
    (r"gemv|gevm|gemmSN_|gemmk1_|(?:^|:|\s)(?:dot|scal|axpy|asum)_kernel|reduce_1Block|inference_naive", False),
    (r"(?:[dw]grad|wgrad2d|dgrad2d|convolve)\w*_(?:engine|sgemm)|reduce_wgrad|grouped_direct|_c1_k1_", False),
    (r"(?i:conv\w*depthwise|depthwise\w*conv)|naive_conv|Sp3Asm|gcnAsm\w*Conv|MIOpenConv|winograd_nonfused", False),
    (r"generateWinograd|fft2d_|flip_filter|pointwise_mult_and_sum", False),
    (r"(?:Batch|Single)Decode\w*With|paged_attention_v[12](?:_reduce)?_kernel", False),
    # NVIDIA: the shape of one instruction in the name (s884, h884, s1688, s16816, i16832, d884 and so on)
    (r"(?:^|_)[hsidcz](?:884|1688|16816|161616|8816|16832|16864)(?![0-9])", True),
    (r"(?:^|[_ :])(?:[hsdcz]|gc)gemm(?![a-z])|(?:^|_)[sh]cudnn", False),
    (r"tensorop|wmma|_[hi]mma|tensor\d+x\d+x\d+|_xmma_|[gG]mma|SM\d+_\d+x\d+x\d+_|tcgen05", True),
    (r"^nvjet_|enable_3x_kernel|GemmUniversal|GemmWarpSpecialized|WarpSpecializedPersistent", True),
    (r"^kernel_cutlass_\w*[gG]emm", True),
    (r"flash_(?:fwd|bwd)|FlashAttn(?:Fwd|Bwd)|[fF]mha|cudnn_generated\w*(?:sdpa|mha|matmul|gemm)", True),
    (r"sparse_attn_fwd_kernel|(?:Batch|Single)Prefill\w*With|BatchMLAPaged", True),
    # TensorRT-LLM's for Blackwell: the shape of one instruction or the architecture; products of 8-bit floats
    (r"^(?:bmm|gemm)_\w+_(?:sm1\d\d|m\d+x\d+x\d+_)", True),
    (r"deep_gemm|dpsk::\S*[gG]emm|[Mm]arlin|machete", True),
    (r"(?:fp8|FP8|[eE]4m3|[eE]5m2|w8a8).*(?i:gemm|matmul|_mm)|(?i:gemm|matmul|_mm).*(?:fp8|FP8|[eE]4m3|[eE]5m2)", True),
    # AMD: matrix instructions of Tensile, MIOpen's implicit GEMM and Composable Kernel, AITER's, AOTriton's attention
    (r"Cijk_\w*_MI\d+x\d+x\d+", True),
    (r"Cijk_\w*_MT\d+x\d+x\d+", False),
    (r"igemm_\w*gtcx\d|xdl|mfma|ck_tile.*[gG]emm|ck::\S*moe\w*gemm", True),
    (r"aiter(?:::|\d+)(?:\w*gemm|fmoe|flatmm|mla_dec|mla_pfl|pa_)", True),
    (r"^attn_fwd|^bwd_kernel_(?:dk_dv|dq|fuse)", True),
    # Triton: templates built on tl.dot; other products compiled by torch.compile add up in vectors
    (r"^triton_(?:tem|mm|bmm|flex)|^fused_moe_kernel|^_?(?:matmul|gemm|grouped_mm)_kernel|^_p?_?matmul_ogs", True),
    (r"^kernel_unified_attention|^_attn_(?:fwd|bwd)|^_?fwd_grouped_kernel|^(?:XXT|XTX|ba_plus_cAA)_kernel", True),
    (r"^triton_[a-z]+_fused_", False),
)  # fmt: skip
#: Classes for which a name without a matching rule leaves the use of tensor cores open.
_OPEN: Final = (CONTRACTION, UNKNOWN)
#: NVIDIA before Volta, Turing without tensor cores (GTX, MX, T400 to T2000), AMD before CDNA and RDNA 3.
_WITHOUT: Final = regex(
    r"\bGTX\b|\bGT \d|\bMX ?[1-5][0-5]0\b|\bTITAN (?:X|Xp|Z|Black)\b|\b(?:Tesla )?[KMP]\d{1,3}[a-z]?\b|\bP10[04]\b"
    r"|Quadro (?:[KMPT]\d|GP100)|\bT(?:[456]\d0|1000|1200|2000)\b|\bMI(?:6|8|25|50|60)\b|Radeon (?:VII|Pro VII)"
    r"|\bRX (?:Vega|[456]\d{3})|gfx(?:8\d\d|90[0269]|10\d\d)",
    re.IGNORECASE,
)


def uses_tensor_cores(kernel: str) -> bool | None:
    """Return True if the kernel uses tensor cores; `None` for a product or unknown kernel whose name does not tell."""
    operator_class = classify_kernel(kernel).operator_class
    if operator_class not in (*_OPEN, OTHER):
        return False
    otherwise = None if operator_class in _OPEN else False
    return next((uses for pattern, uses in TENSOR_CORE_RULES if compiled(pattern).search(kernel)), otherwise)


def lacks_tensor_cores(device: str | None) -> bool:
    """Return True if a device of this name is known to have no tensor cores."""
    return device is not None and _WITHOUT.search(device) is not None


# --- the type in which float32 operands are computed, by kernel name: the first pattern found decides ---
#
# From Ampere on NVIDIA's matrix units take float32 operands rounded to tf32. torch allows that for convolutions by
# default and since 1.12 not for matrix products (docs.pytorch.org, notes/cuda, "TensorFloat-32"). On ROCm float32 is
# float32 unless hipBLASLt is configured otherwise (`HIPBLASLT_ALLOW_TF32=1`, ATen/Context.cpp), whose kernels then
# contain `_S_MX_`; torch wires no tf32 into MIOpen's convolutions (pytorch/pytorch#190711).


#: (pattern, the type in which float32 operands are computed, or `None` if the name does not tell).
COMPUTE_TYPE_RULES: Final[tuple[tuple[str, str | None], ...]] = (
    # emulation by bfloat16, at another rate
    (r"bf16x9|16bfx9|bf16x6", None),
    # AMD: Tensile's xf32, plain float32, and libraries whose names do not tell
    (r"Cijk_[A-Z]\w{3}_[A-Z]\w{3}_S_MX_", TF32),
    (r"Cijk_[A-Z]\w{3}_[A-Z]\w{3}_(?:SB|S_B)_|igemm_\w*_fp32", FLOAT32),
    (r"Cijk_|igemm_|xdl|mfma|_ck_|ck::|ck_tile|^attn_fwd|^bwd_kernel_", None),
    # NVIDIA
    (r"3xtf32|tf32x3|fmha_cutlass[FB]_f32\w*_sm(?:8|9|1\d)\d", THREE_TF32),
    (r"tf32", TF32),
    (r"_ffma_|simt|f32f32_f32f32", FLOAT32),
    (r"bf16|bfloat16|f16(?!\d)|fp16|half|nvjet_(?:sm\d+_)?[htoq]", None),
    (r"(?:^|_)s1688", TF32),
    (r"sgemm|scudnn|gemmSN|gemmk1|gemv|gevm|dot_kernel|convolve_sgemm|conv_depthwise|conv2d_grouped", FLOAT32),
    (r"(?:dgrad|wgrad|convolve|winograd|fft|engine|gemm)\w*<float", FLOAT32),
    # Triton templates obey the setting; some Blackwell kernels without the word emulate
    (r"triton|sm10\d|sm12\d", None),
)


@lru_cache(maxsize=65536)
def compute_type(kernel: str) -> str | None:
    """Return the type in which the kernel computes float32 operands, by its name; `None` if the name does not tell."""
    for pattern, dtype in COMPUTE_TYPE_RULES:
        if compiled(pattern, re.IGNORECASE).search(kernel):
            return dtype
    return TF32 if uses_tensor_cores(kernel) else None


# --- element types of tensor lists, which Kineto does not record, from kernel names ---


#: An opaque type only gives its size, which is all that is needed.
_OPAQUE: Final = {1: "uint8", 2: "int16", 4: "int32", 8: "int64", 16: "complex128"}
_KERNEL: Final = regex(
    r"(?:CatArrayBatchedCopy\w*|multi_tensor_apply_kernel<.*?TensorListMetadata<\d+>, .*?Functor)<\s*"
    r"(?:[\w:() ]*?OpaqueType<(\d+)u?>|([\w: ]+?))\s*[,>]"
)


def element_type(kernel: str) -> str | None:
    """Return torch's name of a type of the size in the kernel's template arguments."""
    match = _KERNEL.search(kernel)
    if match is None:
        return None
    return _OPAQUE.get(int(match[1])) if match[1] else BY_CPP_NAME.get(match[2].strip())


# --- all facts of a kernel, memcpy or memset name, read once ---


#: Copies between host and device as CUPTI, roctracer and Intel's PTI name them (M is pageable memory on the host, H
#: pinned memory).
_HOST_LINK = regex(
    r"^Memcpy (?:HtoD|DtoH|HostToDevice|DeviceToHost|[MH]2D|D2[MH])|^(?:Copy)?(?:HostToDevice|DeviceToHost)"
)


class KernelName(Struct, frozen=True, kw_only=True):
    """The facts in a name; `None` is "not in the name"."""

    classification: Classification
    #: True if the kernel uses tensor cores.
    tensor_cores: bool | None
    #: The element type of the tensor lists that it works on.
    element_type: str | None
    #: True for a copy between host and device.
    crosses_host_link: bool


@lru_cache(maxsize=65536)
def read_kernel_name(name: str) -> KernelName:
    """Read the facts in the name of a device event."""
    return KernelName(
        classification=classify_kernel(name),
        tensor_cores=uses_tensor_cores(name),
        element_type=element_type(name),
        crosses_host_link=_HOST_LINK.match(name) is not None,
    )


# --- the rule book of all operator and kernel names ---


def rules() -> RuleBook:
    """Return every rule in order: ATen's families, then expressions for other operators, and for kernels."""
    return RuleBook(operators=(*FAMILIES, *LIBRARIES, RANGES, WORDS), kernels=KERNEL_TABLES)
