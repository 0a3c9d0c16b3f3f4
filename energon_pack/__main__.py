"""`python -m energon_pack +model=NAME ...`"""

if __name__ == "__main__":  # worker processes re-import this file under another name
    from energon_pack.cli import main

    main()
