package suite

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/refvol/refvol/e2e/tools/probe/answers"
)

// stream runs the probe in a container of the pod with its stdout going to out. The error has its stderr.
func (p *pod) stream(ctx context.Context, container string, out io.Writer, args ...string) error {
	request := p.client.CoreV1().RESTClient().Post().Resource("pods").Namespace(p.Namespace).Name(p.Name).
		SubResource("exec").VersionedParams(&corev1.PodExecOptions{
		Container: container,
		Command:   append([]string{"/probe"}, args...),
		Stdout:    true,
		Stderr:    true,
	}, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(p.config, "GET", request.URL().String())
	if err != nil {
		return err
	}
	var stderr bytes.Buffer
	if err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: out, Stderr: &stderr}); err != nil {
		return fmt.Errorf("%q in %s/%s: %w: %s", args, p.Name, container, err, stderr.Bytes())
	}
	return nil
}

// ask runs the probe in a container and returns its answer. It asks again if the connection is cut, as by a server that is too busy. All
// commands of the probe can be run again.
func (p *pod) ask(ctx context.Context, container string, args ...string) (string, error) {
	for tries := 1; ; tries++ {
		var out bytes.Buffer
		err := p.stream(ctx, container, &out, args...)
		if err == nil || tries == 3 || !strings.Contains(err.Error(), "error reading from error stream") {
			return out.String(), err
		}
		p.t.Logf("%q in %s/%s: asks again: %v", args, p.Name, container, err)
	}
}

// probe runs the probe in the pod's first container and returns its answer.
func (p *pod) probe(args ...string) string {
	p.t.Helper()
	answer, err := p.ask(p.t.Context(), p.Spec.Containers[0].Name, args...)
	if err != nil {
		p.t.Fatal(err)
	}
	return answer
}

// tree returns what the pod's first container has below path.
func (p *pod) tree(path string) []answers.Entry {
	p.t.Helper()
	entries, err := p.entries(p.t.Context(), path)
	if err != nil {
		p.t.Fatal(err)
	}
	return entries
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

// arrival tells how a text arrived in a file.
type arrival struct {
	answers.Reading
	// at is when the answer reached this process: later than the file had the text.
	at  time.Time
	err error
}

// pending is a probe that waits for a text. One goroutine reads its answer and ends
// with the probe, or with the test.
type pending struct {
	p      *pod
	what   string
	result chan arrival
}

// await starts a probe in the pod's first container that reads file until it holds
// text, and returns once it does so.
func (p *pod) await(file, text string, timeout time.Duration) *pending {
	p.t.Helper()
	return p.pend(fmt.Sprintf("%q in %s", text, file), timeout, "await", file, text, timeout.String())
}

// pend starts a probe that says when it is ready, and answers later.
func (p *pod) pend(what string, timeout time.Duration, args ...string) *pending {
	p.t.Helper()
	w := &pending{p: p, what: what, result: make(chan arrival, 1)}
	reader, writer := io.Pipe()
	// The limit is the probe's; this one is for a connection that breaks.
	ctx, cancel := context.WithTimeout(p.t.Context(), timeout+30*time.Second)
	p.t.Cleanup(cancel)
	go func() {
		writer.CloseWithError(p.stream(ctx, p.Spec.Containers[0].Name, writer, args...))
	}()
	lines := bufio.NewReader(reader)
	if line, err := lines.ReadString('\n'); err != nil || line != "ready\n" {
		p.t.Fatalf("wait for %s: got %q, %v", w.what, line, err)
	}
	go func() {
		line, err := lines.ReadString('\n')
		got := arrival{at: time.Now()}
		got.err = errors.Join(err, json.Unmarshal([]byte(line), &got.Reading))
		w.result <- got
	}()
	return w
}

// arrive waits for the text.
func (w *pending) arrive() arrival {
	w.p.t.Helper()
	got := <-w.result
	if got.err != nil {
		w.p.t.Fatalf("%s: %v", w.what, got.err)
	}
	return got
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
