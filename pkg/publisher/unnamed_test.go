package publisher

import (
	"testing"
)

// An object of another namespace without keys has no file. Files of the pod's own namespace stay
// when it is refused: they are no files of it.
func TestARefusedObjectWithoutFiles(t *testing.T) {
	acrossInBubble(t, func(e *env, access *fakeAccess, r Request) {
		e.objects.put(sharedSecret)
		r.Attributes["sources"] = "[{configMap: {name: app}}, {secret: {name: db, namespace: platform}}]"
		e.publish(r)
		e.objects.remove(configMap("app"))
		access.grant()
		e.restart()
		after(reviewTime)
		e.settle()
		e.wantFiles(r, "a", "1")
		if shown := e.status().Shown; shown[configMap("app")].UID == "" || shown[sharedSecret].UID != "" {
			t.Errorf("the status says %v", shown)
		}
		e.unpublish(r)
		e.wantNothing()
	})
}
