"""Weight formats: the GGUF block types, their sizes and their exact values in NumPy.

Packing for the kernels is native (`native/quant/`); what a block means is `dequantize.py`, read that first.
"""
