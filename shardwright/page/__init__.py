"""The what-if page of `shardwright ui`. Streamlit runs `main_page.py`; nothing imports it."""
