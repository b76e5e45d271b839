"""`specc report`: one self-contained HTML page of results, a trace, and what the compiler made of a spec."""
