"""The denoisers, autoencoders and controls of diffusers, from configurations of 32 channels."""

from __future__ import annotations

from functools import partial
from typing import Any

import diffusers
import torch

from benchmarks.zoo import Built, Models, tokens

_BLOCKS = {"block_out_channels": (32, 64), "layers_per_block": 1, "norm_num_groups": 8}
_CROSS = {"cross_attention_dim": 32, "attention_head_dim": 8}


def _latents(channels: int = 4, size: int = 16) -> torch.Tensor:
    return torch.randn(1, channels, size, size)


def _clip(channels: int = 4, frames: int = 4, size: int = 8) -> torch.Tensor:
    return torch.randn(1, channels, frames, size, size)


def _time() -> torch.Tensor:
    return torch.tensor([7])


def unet_2d() -> Built:
    model = diffusers.UNet2DModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=8,
        **_BLOCKS,
    )
    return model, {"sample": _latents(3), "timestep": _time()}


def unet_1d() -> Built:
    model = diffusers.UNet1DModel(
        sample_size=64,
        in_channels=2,
        out_channels=2,
        block_out_channels=(32, 32),
        extra_in_channels=64,
        down_block_types=("DownBlock1DNoSkip", "AttnDownBlock1D"),
        up_block_types=("AttnUpBlock1D", "UpBlock1DNoSkip"),
    )
    return model, {"sample": torch.randn(1, 2, 64), "timestep": _time()}


def unet_2d_condition(*, checkpointing: bool = False) -> Built:
    model = diffusers.UNet2DConditionModel(
        sample_size=16,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        **_BLOCKS,
        **_CROSS,
    )
    if checkpointing:
        model.enable_gradient_checkpointing()
    inputs = {"sample": _latents(), "timestep": _time(), "encoder_hidden_states": torch.randn(1, 6, 32)}
    return model.train(), inputs


def controlnet() -> Built:
    model = diffusers.ControlNetModel(
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        conditioning_embedding_out_channels=(8, 16),
        **_BLOCKS,
        **_CROSS,
    )
    inputs = {"sample": _latents(), "timestep": _time(), "encoder_hidden_states": torch.randn(1, 6, 32)}
    return model, {**inputs, "controlnet_cond": torch.randn(1, 3, 32, 32)}


def autoencoder(kind: str) -> Built:
    options: dict[str, Any] = {
        **_BLOCKS,
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
    }
    if kind == "tiny":
        options = {
            "encoder_block_out_channels": (16, 16),
            "decoder_block_out_channels": (16, 16),
            "num_encoder_blocks": (1, 1),
            "num_decoder_blocks": (1, 1),
        }
    made = {"kl": diffusers.AutoencoderKL, "vq": diffusers.VQModel, "tiny": diffusers.AutoencoderTiny}[kind]
    return made(**options), {"sample": _latents(3, 32)}


def video_autoencoder() -> Built:
    model = diffusers.AutoencoderKLCogVideoX(
        down_block_types=("CogVideoXDownBlock3D",) * 2,
        up_block_types=("CogVideoXUpBlock3D",) * 2,
        block_out_channels=(16, 16),
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=4,
        temporal_compression_ratio=2,
    )
    return model, {"sample": _clip(3, 5, 16)}


def dit() -> Built:
    model = diffusers.DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        num_layers=2,
        sample_size=16,
        in_channels=4,
        out_channels=4,
        norm_num_groups=8,
        num_embeds_ada_norm=10,
    )
    return model, {"hidden_states": _latents(), "timestep": _time(), "class_labels": torch.tensor([3])}


def pixart() -> Built:
    model = diffusers.PixArtTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        num_layers=2,
        sample_size=16,
        in_channels=4,
        out_channels=8,
        cross_attention_dim=32,
        caption_channels=32,
        norm_num_groups=8,
    )
    added = {"resolution": None, "aspect_ratio": None}
    return model, {
        "hidden_states": _latents(),
        "timestep": _time(),
        "encoder_hidden_states": torch.randn(1, 6, 32),
        "added_cond_kwargs": added,
    }


def sd3(*, checkpointing: bool = False) -> Built:
    model = diffusers.SD3Transformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        caption_projection_dim=32,
        pooled_projection_dim=32,
        out_channels=4,
        pos_embed_max_size=16,
    )
    if checkpointing:
        model.enable_gradient_checkpointing()
    return model.train(), {
        "hidden_states": _latents(),
        "timestep": _time(),
        "encoder_hidden_states": torch.randn(1, 6, 32),
        "pooled_projections": torch.randn(1, 32),
    }


def flux() -> Built:
    model = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    )
    return model, {
        "hidden_states": torch.randn(1, 16, 4),
        "timestep": torch.tensor([0.5]),
        "encoder_hidden_states": torch.randn(1, 6, 32),
        "pooled_projections": torch.randn(1, 32),
        "img_ids": torch.zeros(16, 3),
        "txt_ids": torch.zeros(6, 3),
    }


def unet_3d() -> Built:
    model = diffusers.UNet3DConditionModel(
        sample_size=8,
        down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"),
        up_block_types=("UpBlock3D", "CrossAttnUpBlock3D"),
        **_BLOCKS,
        **_CROSS,
    )
    return model, {"sample": _clip(), "timestep": _time(), "encoder_hidden_states": torch.randn(1, 6, 32)}


def cogvideox() -> Built:
    model = diffusers.CogVideoXTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=4,
        out_channels=4,
        time_embed_dim=8,
        text_embed_dim=32,
        num_layers=1,
        sample_width=8,
        sample_height=8,
        sample_frames=4,
        patch_size=2,
        temporal_compression_ratio=4,
        max_text_seq_length=6,
    )
    sample = torch.randn(1, 1, 4, 8, 8)
    return model, {"hidden_states": sample, "timestep": _time(), "encoder_hidden_states": torch.randn(1, 6, 32)}


def wan() -> Built:
    model = diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=4,
        out_channels=4,
        text_dim=32,
        freq_dim=16,
        ffn_dim=64,
        num_layers=1,
        rope_max_seq_len=32,
    )
    return model, {"hidden_states": _clip(), "timestep": _time(), "encoder_hidden_states": torch.randn(1, 6, 32)}


def ltx() -> Built:
    model = diffusers.LTXVideoTransformer3DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=16,
        cross_attention_dim=32,
        num_layers=1,
        caption_channels=32,
    )
    return model, {
        "hidden_states": torch.randn(1, 32, 4),
        "timestep": torch.tensor([[7]]),
        "encoder_hidden_states": torch.randn(1, 6, 32),
        "encoder_attention_mask": torch.ones(1, 6),
        "num_frames": 2,
        "height": 4,
        "width": 4,
    }


def sana() -> Built:
    model = diffusers.SanaTransformer2DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=16,
        num_layers=1,
        num_cross_attention_heads=2,
        cross_attention_head_dim=16,
        cross_attention_dim=32,
        caption_channels=32,
        sample_size=16,
    )
    return model, {"hidden_states": _latents(), "timestep": _time(), "encoder_hidden_states": torch.randn(1, 6, 32)}


def prior() -> Built:
    model = diffusers.PriorTransformer(
        num_attention_heads=2,
        attention_head_dim=16,
        num_layers=2,
        embedding_dim=32,
        num_embeddings=7,
        additional_embeddings=4,
    )
    return model, {
        "hidden_states": torch.randn(2, 32),
        "timestep": torch.tensor([7, 7]),
        "proj_embedding": torch.randn(2, 32),
        "encoder_hidden_states": torch.randn(2, 7, 32),
    }


def uvit() -> Built:
    model = diffusers.UVit2DModel(
        hidden_size=32,
        block_out_channels=32,
        cond_embed_dim=32,
        encoder_hidden_size=32,
        micro_cond_embed_dim=60,
        num_hidden_layers=1,
        num_attention_heads=2,
        in_channels=16,
        vocab_size=96,
        codebook_size=90,
        intermediate_size=64,
        micro_cond_encode_dim=10,
        sample_size=16,
    )
    return model, {
        "input_ids": tokens(1, 64, 90).reshape(1, 8, 8),
        "encoder_hidden_states": torch.randn(1, 6, 32),
        "pooled_text_emb": torch.randn(1, 32),
        "micro_conds": torch.randn(1, 6),
    }


MODELS: Models = {
    "diffusers UNet2D": unet_2d,
    "diffusers UNet1D": unet_1d,
    "diffusers UNet2DCondition": unet_2d_condition,
    "diffusers UNet2DCondition checkpointing": partial(unet_2d_condition, checkpointing=True),
    "diffusers ControlNet": controlnet,
    "diffusers AutoencoderKL": partial(autoencoder, "kl"),
    "diffusers VQModel": partial(autoencoder, "vq"),
    "diffusers AutoencoderTiny": partial(autoencoder, "tiny"),
    "diffusers AutoencoderKLCogVideoX": video_autoencoder,
    "diffusers DiT": dit,
    "diffusers PixArt": pixart,
    "diffusers SD3": sd3,
    "diffusers SD3 checkpointing": partial(sd3, checkpointing=True),
    "diffusers Flux": flux,
    "diffusers UNet3DCondition": unet_3d,
    "diffusers CogVideoX": cogvideox,
    "diffusers Wan": wan,
    "diffusers LTXVideo": ltx,
    "diffusers Sana": sana,
    "diffusers PriorTransformer": prior,
    "diffusers UVit2D": uvit,
}
