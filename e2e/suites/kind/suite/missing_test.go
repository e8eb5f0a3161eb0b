package suite

import (
	"bufio"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A required object that is missing holds the pod. NodePublishVolume returns once the
// object is created, long before its wait is over, and the pod starts.
//
// The time is taken in this process, from before the request that creates the object
// until the plugin's log line about the end of that call has come here through the
// kubelet and the API server. So it is longer than what is promised about.
func TestRequiredObjectMissing(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	spec := newPod("waiting", refvol("login", attributes{"secret": "login"}))
	spec.Spec.NodeName = n.worker(t)
	log := n.followPlugin(spec.Spec.NodeName)
	p := n.create(spec)
	id := p.volumeID("login")
	log.await(t, podTimeout, `"CSI call begins"`, "NodePublishVolume", id)

	// The call stays open: within this time it neither ends nor starts the pod.
	if line, err := log.find(t.Context(), 3*time.Second, `"CSI call`, "NodePublishVolume", id); err == nil {
		t.Fatalf("the publish did not wait: %s", line)
	}
	if got := p.phase(t); got != corev1.PodPending {
		t.Fatalf("the pod is %s without its Secret", got)
	}

	before := time.Now()
	n.createSecret("login", object{"user": canary("admin")})
	log.await(t, podTimeout, `"CSI call done"`, "NodePublishVolume", id)
	took := time.Since(before)
	t.Logf("NodePublishVolume returned %s after the Secret's creation", milliseconds(took))
	if took >= busyLimit {
		t.Errorf("it took %s", milliseconds(took))
	}
	p.awaitReady()
	if err := p.hasText(t.Context(), "probe", mountDir+"login/user", canary("admin")); err != nil {
		t.Error(err)
	}
}

// An optional object that is missing gives an empty volume, which fills when the
// object appears.
func TestOptionalObjectMissing(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	p := n.start(newPod("reader", refvol("settings", attributes{"configMap": "settings", "optional": "true"})))
	for _, e := range p.tree(mountDir + "settings") {
		if e.Type == "file" || !strings.HasPrefix(e.Path, ".") {
			t.Errorf("the empty volume has %+v", e)
		}
	}
	w := p.await(mountDir+"settings/key", "here", podTimeout)
	before := time.Now()
	n.createConfigMap("settings", object{"key": "here"})
	t.Logf("filled %s after the ConfigMap's creation", milliseconds(w.arrive().at.Sub(before)))
}

// logStream is the plugin's log from now on. One goroutine reads it, and ends with
// the test.
type logStream struct{ lines chan string }

// followPlugin follows the log of the plugin on a node.
func (n *namespace) followPlugin(node string) *logStream {
	n.t.Helper()
	ctx, cancel := context.WithCancel(n.t.Context())
	n.t.Cleanup(cancel)
	request := n.client.CoreV1().Pods(pluginNamespace).GetLogs(n.mustPlugin(n.t, node).Name,
		&corev1.PodLogOptions{Follow: true, TailLines: new(int64(0))})
	stream, err := request.Stream(ctx)
	if err != nil {
		n.t.Fatal(err)
	}
	s := &logStream{lines: make(chan string)}
	go func() {
		defer stream.Close()
		defer close(s.lines)
		for scanner := bufio.NewScanner(stream); scanner.Scan(); {
			select {
			case s.lines <- scanner.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	return s
}

// find returns the next line that contains all words. What comes before it is lost.
func (s *logStream) find(ctx context.Context, timeout time.Duration, words ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		select {
		case line, ok := <-s.lines:
			if !ok {
				return "", errors.New("the log has ended")
			}
			if containsAll(line, words) {
				return line, nil
			}
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// await returns the next line that contains all words, or fails the test.
func (s *logStream) await(t *testing.T, timeout time.Duration, words ...string) string {
	t.Helper()
	line, err := s.find(t.Context(), timeout, words...)
	if err != nil {
		t.Fatalf("plugin's log, line with %q: %v", words, err)
	}
	return line
}

func containsAll(line string, words []string) bool {
	for _, word := range words {
		if !strings.Contains(line, word) {
			return false
		}
	}
	return true
}
