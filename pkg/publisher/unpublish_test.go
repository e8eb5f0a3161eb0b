package publisher

import (
	"errors"
	"strings"
	"testing"
)

func TestUnpublishOfTheUnknownSucceeds(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.request("v1")
		e.unpublish(r)
		e.objects.put(configMap("app"), "a", "1")
		e.publish(r)
		e.unpublish(r)
		e.unpublish(r)
		e.wantNothing()
	})
}

// It is not known what was requested, but the mount is unmounted anyway.
func TestUnpublishNeedsNoState(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.objects.failWith(configMap("app"), errors.New("no API server"))
		e.restartUnread()
		e.unpublish(r)
		e.wantNothing()
	})
}

func TestUnpublishOfAnotherTargetKeepsTheVolume(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.settle() // the mounts have been listed: nothing that was forgotten is taken over again
		other := r
		other.Target = strings.Replace(r.Target, "/settings/", "/other/", 1)
		e.unpublish(other)
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		e.wantFiles(r, "a", "2")
		e.unpublish(r)
		e.wantNothing()
	})
}
