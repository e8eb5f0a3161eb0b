package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/refvol/refvol/e2e/tools/probe/answers"
)

// login logs in with the files user and password of a directory each millisecond, until both hold the last text, and then writes to out how
// that went, in JSON. They are read from one generation of the volume. A login fails unless both texts are the same: a database refuses the
// password of another user.
func login(ctx context.Context, out io.Writer, last, dir string) error {
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for all := (answers.Logins{}); ; {
		user, password, err := credentials(dir)
		if errors.Is(err, fs.ErrNotExist) { // the generation has gone meanwhile: opening it again finds the next one
			user, password, err = credentials(dir)
		}
		if err != nil {
			return err
		}
		if all.Tried++; user != password {
			all.Failed, all.Error = all.Failed+1, fmt.Sprintf("user %s with the password of %s", user, password)
		}
		if user == last && password == last {
			return answer(out)(all, nil)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("%s is not the last one yet: %+v", last, all)
		}
	}
}

// credentials reads both files of one generation.
func credentials(dir string) (user, password string, err error) {
	root, err := os.OpenRoot(filepath.Join(dir, "..data"))
	if err != nil {
		return "", "", err
	}
	defer root.Close()
	first, err := root.ReadFile("user")
	if err != nil {
		return "", "", err
	}
	second, err := root.ReadFile("password")
	return string(first), string(second), err
}
