package suite

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/refvol/refvol/e2e/tools/probe/answers"
	"github.com/refvol/refvol/internal/must"
)

// ask runs the probe in a container of the pod and returns its answer. The error has its stderr. It asks again if the connection is cut, as by a
// server that is too busy. All commands of the probe can be run again.
func (p *pod) ask(ctx context.Context, container string, args ...string) (string, error) {
	request := p.client.CoreV1().RESTClient().Post().Resource("pods").Namespace(p.Namespace).Name(p.Name).
		SubResource("exec").VersionedParams(&corev1.PodExecOptions{
		Container: container,
		Command:   append([]string{"/probe"}, args...),
		Stdout:    true,
		Stderr:    true,
	}, scheme.ParameterCodec)
	for tries := 1; ; tries++ {
		executor, err := remotecommand.NewWebSocketExecutor(p.config, "GET", request.URL().String())
		if err != nil {
			return "", err
		}
		var stdout, stderr bytes.Buffer
		err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr})
		if err == nil {
			return stdout.String(), nil
		}
		err = fmt.Errorf("%q in %s/%s: %w: %s", args, p.Name, container, err, stderr.Bytes())
		if tries == 3 || !strings.Contains(err.Error(), "error reading from error stream") {
			return stdout.String(), err
		}
		p.t.Logf("asks again: %v", err)
	}
}

// probe runs the probe in the pod's first container and returns its answer.
func (p *pod) probe(args ...string) string {
	p.t.Helper()
	return must.Get(p.ask(p.t.Context(), p.Spec.Containers[0].Name, args...))(p.t)
}

// tree returns what the pod's first container has below path.
func (p *pod) tree(path string) []answers.Entry {
	p.t.Helper()
	return must.Get(p.entries(p.t.Context(), path))(p.t)
}

// entries is tree for who may try again.
func (p *pod) entries(ctx context.Context, path string) ([]answers.Entry, error) {
	answer, err := p.ask(ctx, p.Spec.Containers[0].Name, "tree", path)
	if err != nil {
		return nil, err
	}
	var entries []answers.Entry
	return entries, json.Unmarshal([]byte(answer), &entries)
}

// hasText returns an error unless the file in the container holds exactly text.
func (p *pod) hasText(ctx context.Context, container, file, text string) error {
	got, err := p.ask(ctx, container, "read", file)
	if err != nil {
		return err
	}
	if got != text {
		return fmt.Errorf("%s holds %q, not %q", file, got, text)
	}
	return nil
}

// wantText wants a file in the pod's first container to hold exactly text now.
func (p *pod) wantText(file, text string) {
	p.t.Helper()
	if err := p.hasText(p.t.Context(), p.Spec.Containers[0].Name, file, text); err != nil {
		p.t.Errorf("pod %s: %v", p.Name, err)
	}
}

// isAbsent tells whether a probe failed because the file or directory is missing.
func isAbsent(err error) bool {
	return err != nil && strings.Contains(err.Error(), "no such file or directory")
}
