package main

import (
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
	// kubernetes is the minor version of the node image that is made here, as 1.35; "" is the newest.
	kubernetes string
	// kubeletSync is how often kubelets sync pods; "" is what cluster.yaml has.
	kubeletSync string
	// crio is a checkout of CRI-O, absolute, which the workers run; "" is containerd.
	crio string
	// keep leaves the cluster in place.
	keep bool
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
		root:        root,
		cache:       getenv("REFVOL_CACHE"),
		kubernetes:  getenv("K8S"),
		kubeletSync: getenv("KUBELET_SYNC"),
		crio:        getenv("CRIO"),
		keep:        getenv("KEEP") == "1",
		testArgs:    args,
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
	if s.crio != "" {
		if !filepath.IsAbs(s.crio) {
			return nil, fmt.Errorf("CRIO=%s: must be an absolute path", s.crio)
		}
		if _, err := os.Stat(filepath.Join(s.crio, "cmd", "crio")); err != nil {
			return nil, fmt.Errorf("CRIO=%s: must be a checkout of github.com/cri-o/cri-o: %w", s.crio, err)
		}
	}
	if s.kubernetes != "" {
		if _, err := os.Stat(filepath.Join(s.kubernetesModule(), s.modFile())); err != nil {
			return nil, fmt.Errorf("K8S=%s: %w; e2e/node-image/kubernetes/versions has those that can be named", s.kubernetes, err)
		}
	}
	return s, nil
}

// kubernetesModule returns the directory of the module that the cluster's programs are built from.
func (s *settings) kubernetesModule() string {
	return filepath.Join(s.root, "e2e", "node-image", "kubernetes")
}

// modFile returns the go.mod of the cluster's version, relative to that directory; "" is the module's own.
func (s *settings) modFile() string {
	if s.kubernetes == "" {
		return ""
	}
	return filepath.Join("versions", s.kubernetes+".mod")
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
