"""`python -m energon_pack +model=NAME ...`"""

if __name__ == "__main__":  # worker processes re-import this file under another name
    import sys

    from energon_pack.errors import PackError

    try:
        from energon_pack.cli import main
    except PackError as error:  # a package that adds a kind of media
        sys.exit(f"energon-pack: error: {error}")
    except KeyboardInterrupt:  # before anything began
        sys.exit(130)
    main()
