"""What programs use: deepinfer.entrypoints.llm.LLM."""
