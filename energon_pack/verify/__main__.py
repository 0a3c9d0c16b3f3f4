if __name__ == "__main__":  # worker processes re-import this file under another name
    from energon_pack.run.command import run_tool
    from energon_pack.verify.command import main

    run_tool("verify", main)
