package suite

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/e2e/tools/probe/answers"
	"github.com/refvol/refvol/e2e/tools/probe/clock"
	judged "github.com/refvol/refvol/internal/history"
)

// requestTimeout is how long a log may take.
const requestTimeout = 30 * time.Second

// readers are pods that tell of each text that their volumes get. The volume settings is of the one
// ConfigMap settings, the volume login of a Secret of the reader's own, which has its name.
type readers struct {
	*namespace
	// names are those of the readers and of their Secrets.
	names, workers []string
	// step counts the changes, and sent has the times of the last one by the object's name.
	step int
	sent map[string]time.Duration
}

// newReaders starts readers, spread over the workers, and waits until all have told of the first text.
func newReaders(t *testing.T, count int) *readers {
	t.Helper()
	r := &readers{namespace: newNamespace(t), sent: map[string]time.Duration{}}
	if r.workers = r.cluster.workers(t); len(r.workers) < 3 {
		t.Fatalf("there are %d workers, want 3", len(r.workers))
	}
	r.setConfigMap("settings", r.object())
	for i := range count {
		name := fmt.Sprintf("reader-%02d", i)
		r.names = append(r.names, name)
		r.setSecret(name, r.object())
		spec := newPod(name, refvol("settings", attributes{"configMap": "settings"}), refvol("login", attributes{"secret": name}))
		spec.Labels = map[string]string{"app": "reader"}
		spec.Spec.NodeName = r.workers[i%len(r.workers)]
		spec.Spec.Containers[0].Args = []string{"follow", readerFile("settings"), readerFile("login")}
		r.create(spec)
	}
	r.awaitCurrent()
	return r
}

// text is what all objects hold at this step. It grows in byte order.
func (r *readers) text() string { return fmt.Sprintf("%06d", r.step) }

func (r *readers) object() object { return object{"text": r.text()} }

// change brings all objects to the next text.
func (r *readers) change() {
	r.t.Helper()
	r.step++
	r.sent["settings"] = now(r.t)
	r.setConfigMap("settings", r.object())
	for _, name := range r.names {
		r.sent[name] = now(r.t)
		r.setSecret(name, r.object())
	}
}

// readerFile is the one file of a reader's volume.
func readerFile(volume string) string { return mountDir + volume + "/text" }

// history is what a reader has told.
type history struct {
	pod  *corev1.Pod
	told []answers.Told
}

// last returns the last that was told of a file, and what was told before that, the same if that was the first.
func (h history) last(file string) (last, before answers.Told) {
	for _, line := range h.told {
		if line.File == file {
			if last, before = line, last; before.File == "" {
				before = line
			}
		}
	}
	return last, before
}

// has tells whether all files have the text.
func (h history) has(text string, files ...string) bool {
	return !slices.ContainsFunc(files, func(file string) bool {
		last, _ := h.last(file)
		return last.File == "" || last.Text != text
	})
}

// awaitCurrent waits until all readers run and have told of this step's text in both volumes. None may
// have told of a read that failed or gave an older text.
func (r *readers) awaitCurrent() map[types.UID]history {
	r.t.Helper()
	current := map[types.UID]history{}
	eventually(r.t, readersTimeout, "all readers have "+r.text(), func(ctx context.Context) error {
		pods, err := r.client.CoreV1().Pods(r.name).List(ctx, metav1.ListOptions{LabelSelector: "app=reader"})
		if err != nil {
			return err
		}
		if len(pods.Items) != len(r.names) {
			return fmt.Errorf("there are %d of %d", len(pods.Items), len(r.names))
		}
		for i := range pods.Items {
			p := &pods.Items[i]
			if _, ok := current[p.UID]; ok {
				continue
			}
			for _, c := range p.Status.ContainerStatuses {
				if c.RestartCount > 0 { // what it told is lost, and a volume may be the cause
					r.t.Fatalf("%s on %s has ended %d times: %+v", p.Name, p.Spec.NodeName, c.RestartCount, c.LastTerminationState)
				}
			}
			h, err := r.history(ctx, p, false)
			if err != nil {
				return err
			}
			if !h.has(r.text(), readerFile("settings"), readerFile("login")) {
				return fmt.Errorf("%s on %s has not: %+v", p.Name, p.Spec.NodeName, h.told[max(0, len(h.told)-2):])
			}
			current[p.UID] = h
		}
		return nil
	})
	for _, h := range current {
		r.judge(h)
	}
	return current
}

// awaitHistory returns what the pod's reader has told once that is as it should be: a log may lag behind.
func (p *pod) awaitHistory(what string, isSo func(history) bool) (h history) {
	p.t.Helper()
	eventually(p.t, podTimeout, fmt.Sprintf("the log of %s has %s", p.Name, what), func(ctx context.Context) (err error) {
		if h, err = p.history(ctx, p.Pod, false); err == nil && !isSo(h) {
			err = fmt.Errorf("%d lines: %+v", len(h.told), h.told[max(0, len(h.told)-4):])
		}
		return err
	})
	return h
}

// history returns what a reader has told, or the run before this one.
func (c *cluster) history(ctx context.Context, p *corev1.Pod, previous bool) (history, error) {
	here, err := clock.Name()
	if err != nil {
		return history{}, err
	}
	if len(p.Status.ContainerStatuses) == 0 {
		return history{}, fmt.Errorf("%s is %s on %q", p.Name, p.Status.Phase, p.Spec.NodeName)
	}
	log, err := c.log(ctx, p, &corev1.PodLogOptions{Previous: previous})
	if err != nil {
		return history{}, err
	}
	h := history{pod: p}
	for line := range strings.Lines(log) {
		if line = strings.TrimSpace(line); line == here {
			continue
		}
		if why, failed := strings.CutPrefix(line, "probe: "); failed { // on stderr, as its end
			h.told = append(h.told, answers.Told{Error: why})
			continue
		}
		var one answers.Told
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			return history{}, fmt.Errorf("log of %s, whose clock must be %q: %q: %w", p.Name, here, line, err)
		}
		h.told = append(h.told, one)
	}
	return h, nil
}

// judge wants no read of a reader to have failed or given an older text: its texts only grow in byte order.
func (n *namespace) judge(reader history) {
	n.t.Helper()
	h := judged.New()
	for _, one := range reader.told {
		h.Declare(judged.Volume{ID: one.File, Required: []string{one.File}})
		seen := &judged.Seen{Shown: map[string]judged.Version{}}
		if one.Error != "" {
			seen.Wrong = []string{one.Error}
		} else {
			seen.Shown[one.File] = judged.Version{UID: one.Text}
		}
		h.AddAt(judged.Event{Kind: judged.Saw, At: one.At, Begin: one.At, Volume: one.File, Seen: seen})
	}
	for _, v := range h.Check() {
		n.t.Errorf("%s on %s: %v", reader.pod.Name, reader.pod.Spec.NodeName, v)
	}
}
