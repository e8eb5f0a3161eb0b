package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"

	"k8s.io/cli-runtime/pkg/resource"
)

// eachInput calls f with the text of each file that -f, -R and -k name. The builder of cli-runtime finds the files but does not read them,
// because it miscounts the documents, and its errors repeat text that may come from a Secret.
func eachInput(ctx context.Context, files resource.FilenameOptions, stdin io.Reader, f func(name string, text io.Reader) error) error {
	if files.Kustomize != "" {
		return addKustomization(ctx, files.Kustomize, f)
	}
	for _, name := range files.Filenames {
		var err error
		switch {
		case name == "-":
			err = f("standard input", stdin)
		case strings.HasPrefix(name, "http://"), strings.HasPrefix(name, "https://"):
			err = addURL(ctx, name, f)
		default:
			err = addPath(name, files.Recursive, f)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// addKustomization reads the output of a kustomization. It runs the user's kubectl, whose kustomize is also the one that applies it; linked
// in, it would be a fifth of this program. The output of a failure is not repeated, because it may quote a manifest.
func addKustomization(ctx context.Context, dir string, f func(string, io.Reader) error) error {
	text, err := exec.CommandContext(ctx, "kubectl", "kustomize", "--", dir).Output() //nolint:gosec // the user names the directory
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("build the kustomization %s: -k runs kubectl: %w", dir, exec.ErrNotFound)
	case ctx.Err() != nil:
		return fmt.Errorf("build the kustomization %s: %w", dir, context.Cause(ctx))
	case err != nil:
		return fmt.Errorf("build the kustomization %s: run `kubectl kustomize %s`, which says why that fails", dir, dir)
	}
	return f(dir, bytes.NewReader(text))
}

func addURL(ctx context.Context, url string, f func(string, io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return fmt.Errorf("read manifests: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("read manifests: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("read manifests: unable to read URL %q, server reported %s", url, response.Status)
	}
	return f(url, response.Body)
}

// addPath reads a file, or the manifests of a directory.
func addPath(path string, recursive bool, f func(string, io.Reader) error) error {
	found, err := resource.ExpandPathsToFileVisitors(nil, path, recursive, resource.FileExtensions, nil)
	if err != nil {
		return fmt.Errorf("read manifests: %w", err)
	}
	if len(found) == 0 {
		return fmt.Errorf("read manifests: error reading [%s]: recognized file extensions are %v", path, resource.FileExtensions)
	}
	for _, visitor := range found {
		file, ok := visitor.(*resource.FileVisitor)
		if !ok {
			return fmt.Errorf("read manifests: %s is not a file but a %T", path, visitor)
		}
		if err := addFile(file.Path, f); err != nil {
			return err
		}
	}
	return nil
}

func addFile(path string, f func(string, io.Reader) error) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read manifests: %w", err)
	}
	defer file.Close()
	return f(path, file)
}
