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
)

// login logs in with the files user and password of a directory each pollInterval, until both hold the last text. They are read from one
// generation of the volume. A login fails unless both texts are the same: a database refuses the password of another user. It writes "ready" to
// out after the first login, and at the end the reading in JSON.
func login(ctx context.Context, out io.Writer, timeout, last, dir string) error {
	limit, err := time.ParseDuration(timeout)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	var r reading
	for {
		user, password, err := credentials(dir)
		if errors.Is(err, fs.ErrNotExist) { // the generation has gone meanwhile: opening it again finds the next one
			user, password, err = credentials(dir)
		}
		if err != nil {
			return err
		}
		if r.Reads++; user != password {
			r.Failed++
			r.Error = fmt.Sprintf("user %s with the password of %s", user, password)
		}
		if user == last && password == last {
			return answer(out)(r, nil)
		}
		if r.Reads == 1 {
			if _, err := fmt.Fprintln(out, "ready"); err != nil {
				return err
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("user %s and password of %s after %s", user, password, limit)
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
