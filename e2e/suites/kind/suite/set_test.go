package suite

import (
	"fmt"
	"testing"
	"time"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/pkg/volume"
)

const (
	// loginRotations is how often TestRotateUserAndPassword changes both Secrets, and manyLoginRotations how often every night.
	loginRotations, manyLoginRotations = 10, 500
	// betweenSecrets is the time between the changes of the two Secrets, and after the second one.
	betweenSecrets = 500 * time.Millisecond
)

// TestRotateUserAndPassword: a program logs in with the user and the password of two Secrets, which are written one after the other. With
// sameRevision no login ever fails. Without it, the logins between the two changes fail.
func TestRotateUserAndPassword(t *testing.T) {
	t.Parallel()
	n, times := newNamespace(t), harness.Scaled(loginRotations, manyLoginRotations)
	write := func(name, key string, i int) {
		t.Helper()
		revision := object{volume.RevisionAnnotation: fmt.Sprint("rotation-", i)}
		n.put(kindSecret, name, contents{text: object{key: fmt.Sprint(i)}, annotations: revision})
	}
	write("db-user", "user", 0)
	write("db-password", "password", 0)
	const sources = "[{secret: {name: db-user}}, {secret: {name: db-password}}]"
	workers := n.workers(t)
	pods := map[string][]*pod{}
	for i, node := range workers {
		for _, same := range []string{"true", "false"} {
			spec := newPod(fmt.Sprint("login-", same, "-", i), refvol("db", attributes{"sources": sources, "sameRevision": same}))
			spec.Spec.NodeName = node
			pods[same] = append(pods[same], n.create(spec))
		}
	}
	logins := map[string][]*pending{}
	for same, all := range pods {
		for _, p := range all {
			p.awaitReady()
			timeout := time.Duration(times)*2*betweenSecrets + podTimeout
			logins[same] = append(logins[same], p.pend("logins", timeout, "login", timeout.String(), fmt.Sprint(times), mountDir+"db"))
		}
	}
	order := [][2]string{{"db-user", "user"}, {"db-password", "password"}}
	for i := range times {
		for j := range order {
			o := order[(i+j)%2] // each of them is the first one of every other rotation
			write(o[0], o[1], i+1)
			<-time.After(betweenSecrets)
		}
	}
	for same, all := range logins {
		for i, w := range all {
			got := w.arrive()
			t.Logf("sameRevision %s on %s: %d of %d logins failed", same, workers[i], got.Failed, got.Reads)
			switch {
			case same == "true" && got.Failed > 0:
				t.Errorf("%d of %d logins failed, for example %s", got.Failed, got.Reads, got.Error)
			case same == "false" && got.Failed == 0:
				t.Errorf("none of %d logins failed without sameRevision: the test has found nothing", got.Reads)
			}
		}
	}
}
