package publisher

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/manager"
)

// One volume's panic is an error of that volume, and is retried.
func TestAPanicOfAReconcile(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		e.objects.put(configMap("other"), "b", "1")
		r, other := e.request("v1"), e.request("v2", "configMap", "other")
		e.publish(r)
		e.publish(other)
		e.writes.set(func() error { panic(canary) }, nil)
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		e.writes.set(nil, nil)
		e.objects.put(configMap("other"), "b", "2")
		e.settle()
		e.wantFiles(other, "b", "2")
		lines := e.logs.With("Something panicked", `volumeID="v1"`, `panicType="string"`)
		if len(lines) == 0 || !strings.Contains(lines[0], "stack=") {
			t.Errorf("logged %q", lines)
		}
		// The logs are searched for canary, the value of the panic, at the end of the test.
		after(retryMax)
		e.wantFiles(r, "a", "2")
		e.wantProblem(r, "")
		e.unpublish(r)
		e.unpublish(other)
		e.wantNothing()
	})
}

// What the files showed before must be removed even if the object is deleted meanwhile and the first try to remove it fails.
func TestAFailedPruneIsTriedAgain(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		e.objects.remove(configMap("app"))
		e.settle()
		e.mounts.failAt("IsMountedAt", unix.EMFILE)
		e.mounts.failAt("Reopen", unix.EMFILE)
		after(pruneTime + time.Second)
		e.wantProblem(r, "not found")
		if n := e.generations(r); n != 2 {
			t.Fatalf("%d generations, want one that can't be removed yet", n)
		}
		e.mounts.failAt("Reopen", nil)
		after(retryMax)
		if n := e.generations(r); n != 1 {
			t.Errorf("%d generations are left", n)
		}
		e.wantFiles(r, "a", "2")
		e.wantProblem(r, "not found")
	})
}

// A 404 of something between the plugin and the API server says nothing about an object.
func TestA404OfARequestIsNoAbsence(t *testing.T) {
	inBubble(t, func(e *env) {
		notFound := apierrors.NewGenericServerResponse(404, "get", resourceOf(configMap("app")), "app", "default backend - 404", 0, true)
		cause := fmt.Errorf("%w: %w", manager.ErrNotSynced, notFound)
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1", "configMap", "app", "optional", "true")
		e.publish(r)
		e.objects.failWith(configMap("app"), cause)
		e.restart()
		after(2 * testResync)
		e.settle()
		e.wantFiles(r, "a", "1")
		e.wantProblem(r, "")
		waiting := e.publishing(e.request("v2", "configMap", "app", "optional", "true"))
		e.wantWaiting(waiting)
		e.wantReason(<-waiting, failure.ReasonUnavailable, "")
	})
}
