package publisher

import (
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/volume"
)

// refusals are the answers of an API server that lets who asks know nothing.
func refusals(ref volume.Ref) map[string]error {
	return map[string]error{
		"forbidden":    apierrors.NewForbidden(resourceOf(ref), ref.Name, errors.New("no more")),
		"unauthorized": apierrors.NewUnauthorized("the token is no good"),
	}
}

// A live volume that may not read one of its objects any more says so once, keeps its
// files, and follows what else it shows.
func TestRightsOfALiveVolumeTakenAway(t *testing.T) {
	for name, denied := range refusals(secret("db")) {
		t.Run(name, func(t *testing.T) { testRightsTakenAway(t, denied) })
	}
}

func testRightsTakenAway(t *testing.T, denied error) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		e.objects.put(secret("db"), "password", canary)
		r := e.request("v1", "sources", "[{configMap: {name: app}}, {secret: {name: db}}]")
		e.publish(r)
		e.objects.deny(secret("db"), denied)
		e.settle()
		e.wantEvents("RefForbidden: " + denied.Error())
		e.wantProblem(r, denied.Error())
		e.wantFiles(r, "a", "1", "password", canary)

		e.objects.put(configMap("app"), "a", "2")
		after(3 * testResync)
		e.wantFiles(r, "a", "2", "password", canary)
		e.wantEvents()
		e.wantProblem(r, denied.Error())

		// Another failure is news, and so is its end.
		e.writes.set(func() error { return errFault }, nil)
		e.objects.put(configMap("app"), "a", "3")
		e.wantEvents("VolumeUpdateFailed")
		e.writes.set(nil, nil)
		after(testResync)
		e.wantEvents("RefForbidden")
		e.wantFiles(r, "a", "3", "password", canary)

		e.objects.deny(secret("db"), nil)
		e.settle()
		e.wantEvents()
		e.wantProblem(r, "")
	})
}

// A new volume is refused what may not be read any more, though it is known.
func TestPublishOfWhatIsDenied(t *testing.T) {
	for name, denied := range refusals(configMap("app")) {
		t.Run(name, func(t *testing.T) { testPublishOfWhatIsDenied(t, denied) })
	}
}

func testPublishOfWhatIsDenied(t *testing.T, denied error) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		live, next := e.request("v1"), e.request("v2")
		e.publish(live)
		e.objects.deny(configMap("app"), denied)
		e.settle()
		e.wantEvents("pod-v1: RefForbidden")
		e.wantReason(e.p.Publish(e.ctx, next), ReasonForbidden, denied.Error())
		e.wantEvents("pod-v2: RefForbidden")
		e.publish(live) // again, as after a restart of the kubelet
		e.wantFiles(live, "a", "1")
		e.objects.deny(configMap("app"), nil)
		e.publish(next)
		e.wantFiles(next, "a", "1")
	})
}

// That a token is not accepted may pass, as when an API server has just started. A new volume
// waits for that, and one from before a restart says nothing, until it counts.
func TestNoTokenIsAccepted(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		live := e.request("v1")
		e.publish(live)
		unknown := fmt.Errorf("%w: %w", manager.ErrNotSynced, apierrors.NewUnauthorized("the token is no good"))
		e.objects.failWith(configMap("app"), unknown)
		e.restart()
		answer := e.publishing(e.request("v2"))
		after(testResync)
		e.wantWaiting(answer)
		e.wantProblem(live, "")
		e.wantEvents()

		e.objects.deny(configMap("app"), unknown)
		e.wantReason(<-answer, ReasonForbidden, unknown.Error())
		e.settle()
		e.wantEvents("RefForbidden", "RefForbidden")
		e.wantProblem(live, "the token is no good")
		e.wantFiles(live, "a", "1")

		e.objects.set(configMap("app"), func() { clear(e.objects.failures); clear(e.objects.denials) })
		e.settle()
		e.wantProblem(live, "")
	})
}
