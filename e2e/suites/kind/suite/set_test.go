package suite

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/probe/answers"
	"github.com/refvol/refvol/internal/must"
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
	var pods []*pod
	for i, node := range n.workers(t) {
		for _, same := range []string{"true", "false"} {
			spec := newPod(fmt.Sprint("login-", same, "-", i), refvol("db", attributes{"sources": sources, "sameRevision": same}))
			spec.Labels = map[string]string{"same": same}
			spec.Spec.NodeName, spec.Spec.RestartPolicy = node, corev1.RestartPolicyNever
			spec.Spec.Containers[0].Args = []string{"login", fmt.Sprint(times), mountDir + "db"}
			pods = append(pods, n.create(spec))
		}
	}
	awaitReady(pods...) // a program may log in a moment later: of many rotations it may miss the first one
	order := [][2]string{{"db-user", "user"}, {"db-password", "password"}}
	for i := range times {
		for j := range order {
			o := order[(i+j)%2] // each of them is the first one of every other rotation
			write(o[0], o[1], i+1)
			<-time.After(betweenSecrets)
		}
	}
	for _, p := range pods {
		got, same := p.logins(), p.Labels["same"]
		t.Logf("sameRevision %s on %s: %d of %d logins failed", same, p.Spec.NodeName, got.Failed, got.Tried)
		switch {
		case same == "true" && got.Failed > 0:
			t.Errorf("%d of %d logins failed, for example %s", got.Failed, got.Tried, got.Error)
		case same == "false" && got.Failed == 0:
			t.Errorf("none of %d logins failed without sameRevision: the test has found nothing", got.Tried)
		}
	}
}

// logins waits until the pod has ended, and returns what it has said of its logins.
func (p *pod) logins() (got answers.Logins) {
	p.t.Helper()
	eventually(p.t, podTimeout, "the logins of "+p.Name+" have ended", func(ctx context.Context) error {
		now, err := p.now(ctx)
		if err == nil && now.Status.Phase != corev1.PodSucceeded && now.Status.Phase != corev1.PodFailed {
			err = fmt.Errorf("it is %s", now.Status.Phase)
		}
		return err
	})
	text := must.Get(p.log(p.t.Context(), p.Pod, &corev1.PodLogOptions{}))(p.t)
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		p.t.Errorf("the logins of %s ended with %q: %v", p.Name, text, err)
	}
	return got
}
