"""What there is to say of each operator, as one page: for the documents, the service's `/docs` and the command line.

`operator_reference` collects the facts of an operator of DirectML, `onnx_reference` those of one of ONNX;
`operator_page` and `onnx_page` arrange them as blocks, which `page_blocks` writes as Markdown, HTML or plain text.
"""
