if __name__ == "__main__":
    from energon_pack.inspect.command import main
    from energon_pack.run.command import run_tool

    run_tool("inspect", main)
