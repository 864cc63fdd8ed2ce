package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/term"
)

// prompter asks for a password at a terminal; nil when nobody can answer.
func (a *App) prompter(ctx context.Context) func(string) (string, error) {
	if a.In == nil || a.isCompleting || !term.IsTerminal(int(a.In.Fd())) {
		return nil
	}
	in := int(a.In.Fd())
	return func(text string) (string, error) {
		before, err := term.GetState(in)
		if err != nil {
			return "", err
		}
		fmt.Fprint(a.Err, text)
		defer fmt.Fprintln(a.Err)
		typed := make(chan string, 1)
		go func() {
			text, _ := term.ReadPassword(in) // an end of the input is an empty password
			typed <- string(text)
		}()
		select {
		case text := <-typed:
			if text == "" {
				return "", errors.New("nothing was typed")
			}
			return text, nil
		case <-ctx.Done(): // the goroutine reads until the process ends; the terminal must get its echo back
			return "", errors.Join(context.Cause(ctx), term.Restore(in, before))
		}
	}
}

// confirmer asks a question at a terminal, whose answer is y or yes; nil when nobody can answer.
func (a *App) confirmer() func(ctx context.Context, question string) (bool, error) {
	if a.In == nil || a.ErrSize == nil || !term.IsTerminal(int(a.In.Fd())) {
		return nil
	}
	return func(ctx context.Context, question string) (bool, error) {
		fmt.Fprint(a.Err, question+" [y/N] ")
		typed := make(chan string, 1)
		go func() {
			text, _ := bufio.NewReader(a.In).ReadString('\n') // an end of the input is a no
			typed <- strings.ToLower(strings.TrimSpace(text))
		}()
		select {
		case text := <-typed:
			return text == "y" || text == "yes", nil
		case <-ctx.Done(): // the goroutine reads until the process ends
			return false, context.Cause(ctx)
		}
	}
}

// terminalSize reads a terminal's size at each call; nil when the file is no terminal.
func terminalSize(file *os.File) func() (width, height int) {
	fd := int(file.Fd())
	if !term.IsTerminal(fd) {
		return nil
	}
	return func() (int, int) {
		width, height, err := term.GetSize(fd)
		if err != nil || width <= 0 || height <= 0 {
			return 80, 24
		}
		return width, height
	}
}

// Width is that of the terminal that Out is, else $COLUMNS, else 80.
func (a *App) Width() int {
	if out, ok := a.Out.(*os.File); ok && a.isTerminal {
		if width, _, err := term.GetSize(int(out.Fd())); err == nil && width > 0 {
			return width
		}
	}
	if width, err := strconv.Atoi(a.Getenv("COLUMNS")); err == nil && width > 0 {
		return width
	}
	return 80
}

// HasUTF8 reports whether the locale is one of UTF-8. As everywhere, the first of these variables that is set decides.
func (a *App) HasUTF8() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if locale := strings.ToLower(a.Getenv(name)); locale != "" {
			return strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8")
		}
	}
	return false
}
