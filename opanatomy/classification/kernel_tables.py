"""The names of device work by what they do, in order: the first expression that matches decides.

From the unmistakable (copies, collectives, ATen's own wrappers) to the vague (words in a name nobody listed). A fill
inside a max-pool is launched by an operator, whose class it takes; here only the name counts. What libraries launch for
nothing but a contraction (split-K sums, cuDNN's layout changes, Winograd transforms) is part of that contraction.
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

_RUNTIME = RuleTable(
    "kernels/runtime",
    (
        Pattern(r"^Memcpy (PtoP|P2P)", COMMUNICATION),
        Pattern(r"^(Memcpy|Memset)\b", MOVEMENT),
        Pattern(r"^(hip|cuda|cu)?(Copy|Mem(cpy|set))(Host|Device|Peer|Array|Async|D\d|\d|$)", MOVEMENT),
        Pattern(r"^Fill(Buffer)?$|^__amd_rocclr_(copy|fill)", MOVEMENT),
    ),
)

_COMMUNICATION = RuleTable(
    "kernels/communication",
    (
        Pattern(r"^(nccl|rccl|msccl|nvshmem|nvls|oneccl|ccl_|deep_ep::|quickreduce|userbuffers_|kuserbuffers_)", COMMUNICATION),
        Pattern(r"ncclDev|ncclKernel|ncclSym|rcclGeneric|mscclKernel|cross_device_reduce|multimem_|nvshmemi?x?_", COMMUNICATION),
        Pattern(r"(?i)(one|two|1|2)_?(shot|stage)_?(push_?)?(all_?reduce|all_?gather|reduce)|symm_?mem", COMMUNICATION),
        Pattern(r"(?i)^(?!.*(gemm|matmul)).*(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|alltoall)", COMMUNICATION),
    ),
    own_name=True,
)  # fmt: skip

#: ATen's wrappers that run a functor over elements: the functor, a template argument, decides.
_MAP = (
    r"^[\w:]*(?:[eE]lementwise_?[kK]ernel|kernelPointwiseApply|unrolled_elementwise|distribution_|jitted_gpu_kernel|"
    r"vectorized\d?_kernel)"
)

_ATEN_MAPS = RuleTable(
    "kernels/aten map",
    (
        Pattern(_MAP + r".*(masked_fill|where_kernel)", ELEMENTWISE),
        Pattern(_MAP + r".*(direct_copy_kernel|CopyFunctor|copy_device_to_device|float\w*_copy_kernel|copy_kernel_cuda|CastFunctor)", MOVEMENT),
        Pattern(_MAP + r".*(FillFunctor|fill_kernel|arange_cuda|linspace_cuda|logspace_cuda|range_cuda)", MOVEMENT),
        Pattern(_MAP + r".*(gpu_index_kernel|index_kernel|index_put|index_copy|index_fill|take_kernel|put_kernel|scatter_gather|masked_scatter|flip_kernel|roll_kernel|unfold_backward|upsample_nearest)", MOVEMENT),
        Pattern(_MAP + r".*((batch|group|layer)_norm|(Batch|Group|Layer|Weight)Norm|softmax)", NORMALIZATION),
        Pattern(_MAP + r".*(mse_|smooth_l1|huber|binary_cross_entropy|soft_margin|kl_div|cdist|renorm)", NORMALIZATION),
        Pattern(r"^[\w:]*(index_elementwise_kernel|_scatter_gather_elementwise_kernel)", MOVEMENT),
        Pattern(_MAP, ELEMENTWISE),
        Pattern(r"^(?:[\w:]*::)?([rR]educe_?[kK]ernel\w*<|jitted_reduce)|^_ZN2at\w*reduce_kernelI|func_wrapper_t", NORMALIZATION),
    ),
)  # fmt: skip

_MULTI_TENSOR = RuleTable(
    "kernels/tensor lists",
    (
        Pattern(r"^[\w:]*multi_tensor_apply_kernel.*(L1Norm|L2Norm|LpNorm|LpMax|MaxNorm|PowSum|MaxFunctor|SumFunctor)", NORMALIZATION),
        Pattern(r"^[\w:]*(lpnorm_cleanup|lpmax_cleanup|powsum_cleanup|cleanup(_v\d)?<)", NORMALIZATION),
        Pattern(r"^[\w:]*multi_tensor_apply_kernel.*(CopyFunctor|Copy<|FillFunctor|ZeroFunctor)", MOVEMENT),
        Pattern(r"^[\w:]*multi_tensor_apply", ELEMENTWISE),
    ),
)

#: Generic kernels whose template arguments say what they run.
_LIBRARY = r"^[\w:]*(rocprim|thrust|hipcub|_kernel_agent|trampoline_kernel)"

_TEMPLATES = RuleTable(
    "kernels/templates",
    (
        # CuTe DSL: one word with the Python names of the kernel inside.
        Pattern(r"^kernel_cutlass_.*(?i:norm|softmax|reduc)", NORMALIZATION),
        Pattern(r"^[\w:]*(cutlass|ck_tile|cute|flash|fmha)\w*.*(?i:fmha|flash(?!infer)|attention|attn|mla_|sdpa)", CONTRACTION, contains=(NORMALIZATION,)),
        Pattern(r"^(_ZN7ck_tile|ck_tile::).*(Rmsnorm|Layernorm|Softmax|Reduce|Smoothquant|TopkSoftmax)", NORMALIZATION),
        Pattern(r"^(_ZN7ck_tile|ck_tile::).*(MoeSorting|Topk)", OTHER),
        Pattern(r"^(_ZN7ck_tile|ck_tile::).*(Permute|Im2Col|ImageToColumn|Transpose)", MOVEMENT),
        Pattern(r"^(_ZN2ck|ck::).*([gG]emm|[cC]onv)", CONTRACTION),
        Pattern(r"^(_ZN2ck|ck::).*([sS]oftmax|[nN]ormalization|[rR]eduction|[rR]educe|[pP]ool)", NORMALIZATION),
        Pattern(r"^(_ZN2ck|ck::).*([eE]lementwise)", ELEMENTWISE),
        Pattern(r"^(?!kernel_cutlass_)[\w:]*(cutlass|ck_tile)", CONTRACTION),
        Pattern(_LIBRARY + r".*(?i:radix_?sort|merge_?sort|sort|unique|partition|select|reduce_?by_?key|histogram|adjacent_diff|lower_bound|upper_bound|search)", OTHER),
        Pattern(_LIBRARY + r".*(?i:scan|reduce)", NORMALIZATION),
        Pattern(_LIBRARY + r".*(?i:fill|copy|gather|scatter)", MOVEMENT),
        Pattern(_LIBRARY, ELEMENTWISE),
    ),
)  # fmt: skip

_ATTENTION = RuleTable(
    "kernels/attention",
    (
        Pattern(r"(Batch|Single)(Prefill|Decode|MLA|POD)\w*With|(Batch|Single|Holistic)\w*Attention|MergeStates|_ZN5aiter\d+pa_", CONTRACTION, contains=(NORMALIZATION,)),
        Pattern(r"(?i)kv_?cache|reshape_and_cache|concat_and_cache|cache_kernel|attention_mask|attn_mask", MOVEMENT),
        Pattern(r"(?i)^(?!.*(fmha|flash|attention)).*softmax", NORMALIZATION),
        Pattern(r"(?i)fmha|sdpa|flash_?(fwd|bwd|attn|decod|mla)|(^|:)flash(_\w+)?::|attention|attn|mha_(fwd|bwd|kernel)|(^|_|:)mla_", CONTRACTION, contains=(NORMALIZATION,)),
        # Triton's attention tutorial, copied into many libraries, and vLLM's sum over the splits of one.
        Pattern(r"^_?(fwd|bwd)_(grouped_)?kernel(_(stage\d|one_col_block|dk_?dv|d?[qkv]|d?kv|splitK|destindex_copy_kv))?$|^_bwd_(preprocess|d[kqv])|^reduce_segments$", CONTRACTION, contains=(NORMALIZATION,)),
    ),
    own_name=True,
)  # fmt: skip

_CONTRACTION = RuleTable(
    "kernels/contraction",
    (
        # Parts that cuBLAS, cuDNN and MIOpen launch for nothing but a contraction.
        Pattern(r"(?i)split_?k_?reduce|cublas|epilogue::impl|gemvx|(^|:)(dot|scal|axpy|asum)_kernel$|reduce_1Block_kernel", CONTRACTION),
        Pattern(r"(?i)(nchw|nhwc)\w*to(nchw|nhwc)|^batched_transpose_\w+(half|dword|byte)$|transpose_readWrite|scalePackedTensor|compute\w*Offsets|kern_precompute|computeWgrad", CONTRACTION, contains=(MOVEMENT,)),
        Pattern(r"^fft2d_[rc]2[rc]_\d+x\d+|pointwise_mult_and_sum_complex|flip_filter|transpose_nc\w*_", CONTRACTION),
        Pattern(r"(?i)finalize_?(matmul_scatter|moe)|moe::\w*::?finalize", MOVEMENT),
        Pattern(r"nvjet|Cijk_|xmma_|scudnn|(?i:[fd]grad|wgrad|fprop|winograd|implicit_?gemm|igemm|cask_cudnn|cudnn::(cnn|winograd)|hcudnn|icudnn|gcnAsm\w*Conv|MIOpenConv|Sp3Asm|SWCU|SubTensorOpWith)", CONTRACTION),
        Pattern(r"(^|[^a-zA-Z])(de|d)?conv(?!ert)|[a-z]Conv(?!ert)|[cC]onvol", CONTRACTION),
        Pattern(r"(?i)(?<!fb)gemm|gemv|matmul|(^|[^a-z])(b|s|grouped_?|scaled_?|int8_?|fp8_?)?mm(_|\d|$)|syrk|herk|trmm|marlin|machete|wv_?splitk|llmm1|stream_?k|fused_moe|fmoe|moe_kernel|moe_mma|einsum|tensorop_|wgmma", CONTRACTION),
        Pattern(r"(?i)rnn_?(block)?_?persist|persist_?rnn|(^|[^a-z])rnn_|RNN_\w*(fp|bp)_", CONTRACTION, contains=(ELEMENTWISE,)),
        # Chunked linear attention (Mamba-2, gated delta rule): products of blocks.
        Pattern(r"^_?chunk_(scan|state)_\w*(fwd|bwd)|(^|_)chunk_\w*(fwd|bwd)\w*kernel(?!.*cumsum)", CONTRACTION),
    ),
    own_name=True,
)  # fmt: skip

_OTHER = RuleTable(
    "kernels/other",
    (
        Pattern(r"(?i)potr[fsi]|getr[fsi]|geqr|syev|heev|gesv|trs[mv]|trtri|larf[bgt]|laswp|sytr|gebrd|steqr|cusolver|rocsolver|cholesky|householder", OTHER),
        Pattern(r"(?i)(^|[^a-z])(vk|cu|roc)?fft|_fft", OTHER),
        Pattern(r"(?i)(?-i:[a-z]Sort)|(radix|merge|block|bitonic|segmented|count|and)_?(sort|rank)|(^|_|:)sort|onesweep", OTHER),
        Pattern(r"(?i)top_?k|k_?th_?value|gather_?median|radix_?find|compute_?mode|searchsorted|bucketize|nonzero|unique|adjacent_?difference|histogram|bincount|DeviceSelect|DeviceCompact|RunLength|DevicePartition|reduce_?by_?key|multinomial|randperm|(^|[_:])nms|routing|moe_?sort|moe_?align|bitmatrix|align_block_size", OTHER),
        Pattern(r"(?i)selective_scan|(^|_)ssm_|state_passing|wkv|(^|[_:])sampl|Sampling|penalt|fused_recurrent", OTHER),
    ),
    own_name=True,
)  # fmt: skip

_LOOKUP = RuleTable(
    "kernels/look-up",
    (
        Pattern(r"(?i)rotary|(^|[_:])m?rope(_|\d|$)|[a-z]rope_", ELEMENTWISE),
        Pattern(r"(?i)^(?!.*norm).*(embedding|(^|[_:])embs?_|_embs?_)", MOVEMENT),
    ),
    own_name=True,
)

_NORMALIZATION = RuleTable(
    "kernels/normalization",
    (
        Pattern(r"(?i)(rms|layer|batch|group|instance)_?norm|(^|[^a-z])(ln|bn|gn)_(fwd|bwd|fw|bw|parallel)|norm(_|\d|$|:)|bnorm|norm2d|MIOpen\w*Norm|MIOpenLRN", NORMALIZATION),
        Pattern(r"RowwiseMoments|GammaBeta|Compute(InternalGradients|FusedParams|BackwardFusedParams)|cuCompute\w*Grad|(?i:welford)|Compute1dBackward|GroupNorm", NORMALIZATION),
        Pattern(r"(?i)cross_?entropy|nll_?loss|NLLCriterion|(^|[_:])ctc_|margin_?loss|Margin|_loss(_|$)|(^|_)loss_|kl_?div|(^|_)jsd|log_?sum_?exp", NORMALIZATION),
        Pattern(r"(?i)(max|avg|average|adaptive|fractional)_?pool|pooling|mloPool|adaptive_?(average|max)|roi_?(align|pool)|(^|[_:])pool", NORMALIZATION),
        Pattern(r"(?i)(dynamic|per_?token|per_?group|per_?block|group|blockwise|block_scaled|rowwise|vector|mxfp\d|nvfp4|fp4|smooth)\w*_?quant(?!\w*to_float)|VectorQuant|quantize_with_block_size|qparam|(^|[_:])amax|absmax|cdist|pdist|segment_reduce", NORMALIZATION),
        Pattern(r"(?i)DeviceScan|kernel_scan|(inclusive|exclusive|segmented|lookback|prefix)_?(scan|sum)|cumsum|cumprod|cummax|cummin|(^|[_:])scan(_|$)|ScanInit", NORMALIZATION),
        Pattern(r"(?i)DeviceReduce|SegmentedReduce|(^|[_:])reduc(e|tion)|_reduce(_|$)|block_?reduce|reduction|(^|[_:])(row|col|moe)?_?(sum|mean|var|argmax|argmin|max|min)(_(kernel|rows|cols|dim|fwd|bwd|reduce)|$)|nvfuser_\w*(reduction|persistent)|count_nonzero", NORMALIZATION),
    ),
    own_name=True,
)  # fmt: skip

_MOVEMENT = RuleTable(
    "kernels/data movement",
    (
        Pattern(r"(?i)grid_?sampl|upsample_(bi|tri)?(linear|cubic)|upsample_gen2d|interpolat|dropout|masked_scale", ELEMENTWISE),
        Pattern(r"(?i)CatArray|chunk_cat|(^|[_:])cat_|concat|stack_kernel|split_with_sizes|(^|[_:])split", MOVEMENT),
        Pattern(r"(?i)gather|scatter|index_?(select|copy|add|fill|put|reduce|ing)|indexFunc|krn_partial|compute_grad_weight|sum_and_scatter|linearize_index|(^|[_:])(take|put|index|slice)_|get_rows|find_long_segments|segment_offset", MOVEMENT),
        Pattern(r"(?i)transpos|permut|reshap|recat|copy|memcpy|memset|(^|[_:])fill|_fill|zero_|cast|convert|layout|swizzle|(^|[_:])pad|_pad|(replication|reflection)_?pad|roll_cuda|(^|[_:])(roll|flip)|im2col|col2im|vol2col|col2vol|im2d2col|pixel_shuffle|shuffle|tri[ul]_indices|repeat|compute_cuda_kernel|arange|linspace|upsample_nearest|max_unpool|unfold|(un)?pack(ed)?(_|$)|offsets_range|repack|expand|jagged|dense_to|to_dense|bucketi[sz]e|SetTensor|(^|[_:])set_?(tensor|value|zero)|_lengths|swap_blocks", MOVEMENT),
    ),
    own_name=True,
)  # fmt: skip

_ELEMENTWISE = RuleTable(
    "kernels/elementwise",
    (
        Pattern(r"(?i)elem(ent)?_?wise|pointwise|adam|adagrad|(^|[_:])lamb|(^|[_:])(sgd|lion|muon|rmsprop)|optimi[sz]er|unscale|(^|[_:])amp_|(^|[_:])ema_", ELEMENTWISE),
        Pattern(r"(?i)silu|gelu|relu|swish|swiglu|geglu|(^|_)r?e?glu|sigmoid|tanh|_and_mul|activation|gated_act|(^|[_:])act_|lstm_cell|gru_cell|softplus|mish|Neuron(Fwd|Bwd)|(^|_)dyt_", ELEMENTWISE),
        Pattern(r"(?i)random|philox|curand|(^|[_:])rng|bernoulli|generate_seed|distribution|uniform|exponential|hadamard", ELEMENTWISE),
        Pattern(r"(?i)dequant|quant|fp8\w*to_float|to_fp8|bias|(^|[_:])(add|sub|mul|div|scale|axpby|mask|where|clamp|exp|residual|tri[lu]|triu_tril|element|cross|ger)(_|kernel|$|\d)|_(add|mul|scale)_kernel|OpTensor|Op\dd|residual|bounds_check|assert_async|nan_to_num|isfinite|transform|for_each|parallel_for", ELEMENTWISE),
    ),
    own_name=True,
)  # fmt: skip

KERNEL_TABLES: tuple[RuleTable, ...] = (
    _RUNTIME,
    _COMMUNICATION,
    _ATEN_MAPS,
    _MULTI_TENSOR,
    _TEMPLATES,
    _ATTENTION,
    _CONTRACTION,
    _OTHER,
    _LOOKUP,
    _NORMALIZATION,
    _MOVEMENT,
    _ELEMENTWISE,
)
