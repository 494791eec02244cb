from plaudit.cli import main

main()
