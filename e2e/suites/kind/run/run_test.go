package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestReadSettings(t *testing.T) {
	for name, c := range map[string]struct {
		env       map[string]string
		want      settings
		wantError string
	}{
		"defaults": {
			env:  map[string]string{"HOME": "/home/user", "KUBECONFIG": "/home/user/.kube/config"},
			want: settings{cache: "/home/user/.cache/refvol"},
		},
		"all": {
			env:  map[string]string{"REFVOL_CACHE": "/cache", "KUBELET_SYNC": "1m", "KEEP": "1"},
			want: settings{cache: "/cache", kubeletSync: "1m", keep: true},
		},
		"an older Kubernetes": {
			env:  map[string]string{"REFVOL_CACHE": "/cache", "K8S": "1.35"},
			want: settings{cache: "/cache", kubernetes: "1.35"},
		},
		"CRI-O that is not there": {
			env:       map[string]string{"REFVOL_CACHE": "/cache", "CRIO": "/no-such-checkout"},
			wantError: "CRIO=/no-such-checkout: must be a checkout of github.com/cri-o/cri-o: ",
		},
		"CRI-O at a relative path": {
			env:       map[string]string{"REFVOL_CACHE": "/cache", "CRIO": "../../.."},
			wantError: "CRIO=../../..: must be an absolute path",
		},
		"a Kubernetes that is not there": {
			env:       map[string]string{"REFVOL_CACHE": "/cache", "K8S": "1.12"},
			wantError: "K8S=1.12: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("HOME", c.env["HOME"])
			got, err := readSettings(func(name string) string { return c.env[name] }, []string{"-test.run=TestOne"})
			if c.wantError != "" {
				if err == nil || !strings.Contains(err.Error(), c.wantError) {
					t.Fatalf("error %v, want %q", err, c.wantError)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(got.root, "deploy", "base")); err != nil {
				t.Errorf("root %s: %v", got.root, err)
			}
			if strings.Join(got.testArgs, " ") != "-test.run=TestOne" {
				t.Errorf("arguments %q", got.testArgs)
			}
			got.root, got.testArgs = "", nil
			if !reflect.DeepEqual(*got, c.want) {
				t.Errorf("got %+v, want %+v", *got, c.want)
			}
		})
	}
}

func TestFeatureGates(t *testing.T) {
	const users, impersonation = "featureGates: {AtomicWriteVolumeUserFields: true}\n", "featureGates: {ConstrainedImpersonation: true}\n"
	for image, want := range map[string]string{
		"": "", "kindest/node": "", "kindest/node:latest": "",
		"localhost/refvol/kind-node:v1.35.4": impersonation, "localhost/refvol/kind-node:v1.36.3": "", "localhost/refvol/kind-node:v1.37.2": users,
		"kindest/node:v1.37.0@sha256:0123": users, "kindest/node:v1.40.0": users,
	} {
		if got := featureGates(image); got != want {
			t.Errorf("%q: got %q", image, got)
		}
	}
}

// With cgroup v1, and only then, neither the kubelets nor containerd make cgroups through systemd.
func TestWithoutSystemd(t *testing.T) {
	for cgroups, want := range map[string]int{"1": 1, "2": 0} {
		config := configuration("", "", cgroups)
		for _, text := range []string{"\n  cgroupDriver: cgroupfs\n", "\n    SystemdCgroup = false\n"} {
			if got := strings.Count(config, text); got != want {
				t.Errorf("cgroup v%s: %q is there %d times, want %d", cgroups, text, got, want)
			}
		}
	}
}

// The usual image has a version, so that it gets the gates.
func TestUsualImage(t *testing.T) {
	image, err := usualImage(t.Context(), "../../../node-image/kubernetes")
	if err != nil || !regexp.MustCompile(`^kindest/node:v1\.\d+\.\d+@sha256:`).MatchString(image) {
		t.Errorf("%q, %v", image, err)
	}
}

// Only a registry counts as one, for a gateway may answer any address.
func TestRegistryAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"registry": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
			w.WriteHeader(http.StatusUnauthorized)
		}, ""},
		"gateway": {http.NotFound, "is no registry"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(c.handler)
			defer server.Close()
			defer http.DefaultClient.CloseIdleConnections()
			err := registryAnswers(t.Context(), server.URL)
			if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	if err := registryAnswers(t.Context(), "http://127.0.0.1:1"); err == nil {
		t.Error("a closed port answers")
	}
}

func TestCommand(t *testing.T) {
	shell := func(script string) command {
		return command{dir: t.TempDir(), env: []string{"WORD=hello"}, args: []string{"sh", "-c", script}}
	}
	var progress strings.Builder
	got, err := shell(`echo "$WORD"; echo working >&2`).output(t.Context(), &progress)
	if err != nil || got != "hello" || progress.String() != "working\n" {
		t.Errorf("got %q, progress %q, %v", got, progress.String(), err)
	}
	if err := shell("echo why; exit 3").quiet(t.Context()); err == nil || !strings.Contains(err.Error(), "exit status 3\nwhy") {
		t.Errorf("got %v", err)
	}
}

// A program whose context ends is interrupted together with its children, and has
// time to end in its own way.
func TestCommandIsInterrupted(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	script := `trap 'echo ended >end; exit 1' INT; mkfifo never; : >started; read -r line <>never`
	done := make(chan error, 1)
	go func() { done <- command{dir: dir, args: []string{"sh", "-c", script}}.quiet(ctx) }()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for {
		if _, err := os.Stat(filepath.Join(dir, "started")); err == nil {
			break
		}
		<-ticker.C
	}
	cancel()
	if err := <-done; err == nil {
		t.Error("an interrupted program counts as done")
	}
	if _, err := os.Stat(filepath.Join(dir, "end")); err != nil {
		t.Errorf("the program could not end in its own way: %v", err)
	}
}

func TestWithParent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var parent atomic.Int64
		parent.Store(42)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		watched := withParent(ctx, func() int { return int(parent.Load()) })
		select {
		case <-watched.Done():
			t.Fatal("ended under a living parent")
		case <-time.After(time.Minute):
		}
		parent.Store(1)
		<-watched.Done()
		if err := context.Cause(watched); errors.Is(err, context.Canceled) {
			t.Errorf("cause %v", err)
		}
	})
}
