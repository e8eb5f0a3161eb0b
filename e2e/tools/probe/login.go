package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// login logs in with the files user and password of a directory each pollInterval, until both hold the last text. They are read from one
// generation of the volume. A login fails unless both texts are the same: a database refuses the password of another user.
func login(ctx context.Context, out io.Writer, timeout, last, dir string) error {
	return until(ctx, out, timeout, func(r *reading) (bool, error) {
		user, password, err := credentials(dir)
		if errors.Is(err, fs.ErrNotExist) { // the generation has gone meanwhile: opening it again finds the next one
			user, password, err = credentials(dir)
		}
		if user != password {
			r.fails(fmt.Sprintf("user %s with the password of %s", user, password))
		}
		return user == last && password == last, err
	})
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
