package publisher

import (
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/volume"
)

// refusals are the answers of an API server that tells the caller nothing about an object.
func refusals(ref volume.Ref) map[string]error {
	return map[string]error{
		"forbidden":    apierrors.NewForbidden(resourceOf(ref), ref.Name, errors.New("no more")),
		"unauthorized": apierrors.NewUnauthorized("the token is no good"),
	}
}

// A new volume cannot show an object that may not be read any more, even if its state is known.
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
		e.wantReason(e.p.Publish(e.ctx, next), failure.ReasonForbidden, denied.Error())
		e.wantEvents("pod-v2: RefForbidden")
		e.publish(live) // again, as after a restart of the kubelet
		e.wantFiles(live, "a", "1")
		e.objects.deny(configMap("app"), nil)
		e.publish(next)
		e.wantFiles(next, "a", "1")
	})
}
