package publisher

import (
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A live volume that may not read one of its objects any more says so once, keeps its
// files, and follows what else it shows.
func TestRightsOfALiveVolumeTakenAway(t *testing.T) {
	inBubble(t, func(e *env) {
		denied := apierrors.NewForbidden(resourceOf(secret("db")), "db", errors.New("no more"))
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
	inBubble(t, func(e *env) {
		denied := apierrors.NewForbidden(resourceOf(configMap("app")), "app", errors.New("no more"))
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
