package controlplane

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFromAssets(t *testing.T) {
	for name, test := range map[string]struct{ etcd, server, want string }{
		"fine":       {"#!/bin/sh\n", "#!/bin/sh\necho Kubernetes v1.36.2\n", ""},
		"newer":      {"#!/bin/sh\n", "#!/bin/sh\necho Kubernetes v1.40.0-alpha.1\n", ""},
		"too old":    {"#!/bin/sh\n", "#!/bin/sh\necho Kubernetes v1.35.9\n", "kube-apiserver v1.35.9, and this needs v1.36.0 or newer: setup-envtest use 1.36.x"},
		"no etcd":    {"", "#!/bin/sh\n", "etcd"},
		"no server":  {"#!/bin/sh\n", "", "ask "},
		"no version": {"#!/bin/sh\n", "#!/bin/sh\necho hello\n", "the version of "},
	} {
		dir := t.TempDir()
		for file, text := range map[string]string{"etcd": test.etcd, "kube-apiserver": test.server} {
			if text == "" {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		got, err := FromAssets(t.Context(), dir)
		switch {
		case test.want == "" && (err != nil || got.Etcd != filepath.Join(dir, "etcd") || got.APIServer != filepath.Join(dir, "kube-apiserver")):
			t.Errorf("%s: got %+v, %v", name, got, err)
		case test.want != "" && (err == nil || !strings.HasPrefix(err.Error(), "KUBEBUILDER_ASSETS: ") || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: got %v, want %s", name, err, test.want)
		}
	}
}
