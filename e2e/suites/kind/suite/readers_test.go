package suite

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/refvol/refvol/e2e/tools/probe/answers"
	"github.com/refvol/refvol/e2e/tools/probe/clock"
)

// requestTimeout is how long a log may take.
const requestTimeout = 30 * time.Second

// history is what a reader has told.
type history []answers.Told

// last returns the last that was told of a file.
func (h history) last(file string) (last answers.Told) {
	for _, line := range h {
		if line.File == file {
			last = line
		}
	}
	return last
}

// has tells whether all files have the text.
func (h history) has(text string, files ...string) bool {
	return !slices.ContainsFunc(files, func(file string) bool {
		last := h.last(file)
		return last.File == "" || last.Text != text
	})
}

// awaitHistory returns what the pod's reader has told once that is as it should be: a log may lag behind.
func (p *pod) awaitHistory(what string, isSo func(history) bool) (h history) {
	p.t.Helper()
	eventually(p.t, podTimeout, fmt.Sprintf("the log of %s has %s", p.Name, what), func(ctx context.Context) (err error) {
		if h, err = p.history(ctx, p.Pod); err == nil && !isSo(h) {
			err = fmt.Errorf("%d lines: %+v", len(h), h[max(0, len(h)-4):])
		}
		return err
	})
	return h
}

// history returns what a reader has told.
func (c *cluster) history(ctx context.Context, p *corev1.Pod) (h history, err error) {
	here, err := clock.Name()
	if err != nil {
		return nil, err
	}
	if len(p.Status.ContainerStatuses) == 0 {
		return nil, fmt.Errorf("%s is %s on %q", p.Name, p.Status.Phase, p.Spec.NodeName)
	}
	log, err := c.log(ctx, p, &corev1.PodLogOptions{})
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(log) {
		if line = strings.TrimSpace(line); line == here {
			continue
		}
		var one answers.Told
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			return nil, fmt.Errorf("log of %s, whose clock must be %q: %q: %w", p.Name, here, line, err)
		}
		h = append(h, one)
	}
	return h, nil
}

// judge wants no read of a pod's reader to have failed or given an older text: its texts only grow in byte order.
func (p *pod) judge(h history) {
	p.t.Helper()
	last := map[string]string{}
	for _, one := range h {
		if one.Error != "" || one.Text < last[one.File] {
			p.t.Errorf("%s on %s: %+v after %q", p.Name, p.Spec.NodeName, one, last[one.File])
		}
		last[one.File] = one.Text
	}
}
