package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// settings are what the environment and the command line ask for.
type settings struct {
	// root is the repository's directory, absolute.
	root string
	// cache is the directory of what is kept between runs, absolute.
	cache string
	// nodeImage is the node image to use; "" leaves the choice to the runner.
	nodeImage string
	// keep leaves the cluster in place.
	keep bool
	// kubeconfig and loadImage name a cluster from outside; both or neither is set.
	kubeconfig, loadImage string
	// testArgs go to the suite.
	testArgs []string
}

// readSettings reads the environment by getenv. The working directory must be in
// the module e2e.
func readSettings(getenv func(string) string, args []string) (*settings, error) {
	root, err := findRoot()
	if err != nil {
		return nil, err
	}
	s := &settings{
		root:      root,
		cache:     getenv("REFVOL_CACHE"),
		nodeImage: getenv("KIND_NODE_IMAGE"),
		keep:      getenv("KEEP") == "1",
		loadImage: getenv("LOAD_IMAGE"),
		testArgs:  args,
	}
	if s.cache == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, fmt.Errorf("set REFVOL_CACHE: %w", err)
		}
		s.cache = filepath.Join(home, ".cache", "refvol")
	}
	if s.cache, err = filepath.Abs(s.cache); err != nil {
		return nil, fmt.Errorf("REFVOL_CACHE: %w", err)
	}
	// A KUBECONFIG alone may name any cluster that its user works with; it is used
	// only together with the other.
	if s.loadImage != "" {
		if s.kubeconfig = getenv("KUBECONFIG"); s.kubeconfig == "" {
			return nil, errors.New("LOAD_IMAGE is set, so KUBECONFIG must name the cluster to use")
		}
	}
	return s, nil
}

// findRoot returns the repository's directory: the one above the working directory
// that holds e2e/suites/kind.
func findRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "e2e", "suites", "kind", "run", "main.go")); err == nil {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("%s is not in the repository", dir)
		}
	}
}
