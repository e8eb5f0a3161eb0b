package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/health"
	"github.com/refvol/refvol/pkg/status"
)

// The reasons of events on the objects of a rollout.
const (
	eventStarted  = "RolloutStarted"
	eventStopped  = "RolloutStopped"
	eventReverted = "RolloutReverted"
	eventDone     = "RolloutDone"
)

// tell writes an event on each object, for those who look at it later. Without the right it only warns.
func (r *roller) tell(ctx context.Context, reason, format string, args ...any) {
	for i, object := range r.objects {
		if err := r.calls.event(ctx, object, r.now[i].Version, reason, fmt.Sprintf(format, args...)); err != nil && !r.cannotTell {
			r.cannotTell = true
			r.calls.warn(fmt.Errorf("write events: %w", err))
		}
	}
}

// event creates an event on an object.
func (c *cluster) event(ctx context.Context, object fleet.Object, version status.Version, reason, text string) error {
	now, kind := metav1.Now(), corev1.EventTypeNormal
	if reason == eventStopped || reason == eventReverted {
		kind = corev1.EventTypeWarning
	}
	_, err := c.client.CoreV1().Events(object.Namespace).Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: object.Namespace, GenerateName: object.Name + "."},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: object.Kind, Namespace: object.Namespace, Name: object.Name, UID: types.UID(version.UID), ResourceVersion: version.ResourceVersion,
		},
		Type: kind, Reason: reason, Message: text, Source: corev1.EventSource{Component: rolloutManager},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create an event on %s: %w", object, err)
	}
	return nil
}

// runCheck returns a stopError if the command of --check has failed for --unready-for.
func (r *roller) runCheck(ctx context.Context, to int) error {
	if r.check == "" {
		return nil
	}
	problem := ""
	if err := r.calls.check(ctx, []string{
		"REFVOL_SHARE=" + share(to), fmt.Sprint("REFVOL_STEP=", r.number), "REFVOL_OBJECTS=" + r.names(), "REFVOL_NAMESPACE=" + r.objects[0].Namespace,
	}); err != nil && ctx.Err() == nil {
		problem = "the command fails: " + err.Error()
	}
	switch {
	case problem == "":
		r.checkFails = time.Time{}
		return nil
	case r.checkFails.IsZero():
		r.checkFails = time.Now()
	}
	if time.Since(r.checkFails) < r.unreadyFor {
		return nil
	}
	return &stopError{health.Verdict{Unhealthy: []health.Finding{{Name: "(--check)", What: problem, Since: r.checkFails}}}}
}

// runShell runs a command with more variables. What it prints goes to out.
func runShell(ctx context.Context, command string, env []string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", command) //nolint:gosec // It is the command line of the user.
	cmd.Env, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = append(os.Environ(), env...), out, out, time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("sh -c: %w", err)
	}
	return nil
}

// checkTimeout is how long the command of --check may take.
const checkTimeout = 30 * time.Second
