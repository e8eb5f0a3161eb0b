package suite

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// podIdentityDriver is that of the second plugin that the runner installs, which reads
	// objects with the pods' own tokens.
	podIdentityDriver    = "pod-identity.refvol.dev"
	podIdentityNamespace = "refvol-pod-identity"
	// republishTime is how long a kubelet may take to publish a volume again.
	republishTime = 3 * time.Minute
)

// grant lets a service account of a namespace read an object of this one, as the
// examples do; what it returns takes that back.
func (n *namespace) grant(kind, name, from, account string) (revoke func()) {
	n.t.Helper()
	role := "readers-" + strings.ToLower(rand.Text())
	n.kubectl("create", "role", role, "--verb=get,list,watch", "--resource="+kind, "--resource-name="+name)
	n.kubectl("create", "rolebinding", role, "--role="+role, "--serviceaccount="+from+":"+account)
	return func() {
		n.t.Helper()
		n.kubectl("delete", "rolebinding", role)
	}
}

// awaitText waits until a file of the pod's volume has a text, and awaitNoFile until there
// is no such file.
func (p *pod) awaitText(file, text string, timeout time.Duration) {
	p.t.Helper()
	eventually(p.t, timeout, file+" has the text", func(ctx context.Context) error {
		return p.hasText(ctx, "probe", file, text)
	})
}

func (p *pod) awaitNoFile(file string, timeout time.Duration) {
	p.t.Helper()
	eventually(p.t, timeout, file+" is gone", func(ctx context.Context) error {
		if _, err := p.ask(ctx, "probe", "read", file); err == nil {
			return errors.New("it is there")
		}
		return nil
	})
}

// A plugin without a right to any object shows a pod what the pod's own service account may
// read, of its namespace and of another, with the tokens that the kubelet hands over; a
// revocation takes it away. After a restart the plugin has no token, and goes on once the kubelet has published again.
func TestPodIdentity(t *testing.T) {
	t.Parallel()
	node := shareNode(t) // elsewhere the pods of other tests would wait for their tokens, too
	n, source := newNamespace(t), newNamespace(t)
	n.kubectl("create", "serviceaccount", "web")
	n.setSecret("db", object{"password": canary("first")})
	source.setSecret("shared", object{"token": canary("theirs")})
	volume := ofDriver(podIdentityDriver, "settings", attributes{"sources": fmt.Sprintf(
		"[{secret: {name: db}}, {secret: {name: shared, namespace: %s}}]", source.name)})
	source.grant("secrets", "shared", n.name, "web")

	refused := n.create(newPod("refused", volume)) // as the account default
	refused.awaitWarning("RefForbidden", `service account "default" of the pod may not get, list and watch Secret "`+n.name+`/db"`)
	if got := refused.phase(t); got != corev1.PodPending {
		t.Errorf("the pod without a right is %s", got)
	}

	revoke := n.grant("secrets", "db", n.name, "web")
	spec := onNode(newPod("reader", volume), node)
	spec.Spec.ServiceAccountName = "web"
	p := n.start(spec)
	p.awaitText(mountDir+"settings/password", canary("first"), podTimeout)
	p.awaitText(mountDir+"settings/token", canary("theirs"), podTimeout)
	n.setSecret("db", object{"password": canary("second")})
	p.awaitText(mountDir+"settings/password", canary("second"), podTimeout)

	revoke()
	p.awaitNoFile(mountDir+"settings/password", podTimeout)
	p.wantText(mountDir+"settings/token", canary("theirs"))
	n.grant("secrets", "db", n.name, "web")
	p.awaitText(mountDir+"settings/password", canary("second"), podTimeout)
	refused.delete()

	plugin := n.awaitPlugin(t, podIdentityNamespace, node)
	n.searchBefore(plugin)
	(&pod{n, plugin}).delete()
	n.setSecret("db", object{"password": canary("third")})
	begin := time.Now()
	p.awaitText(mountDir+"settings/password", canary("third"), republishTime)
	t.Logf("updated %.0f s after the plugin's pod had gone", time.Since(begin).Seconds())
	p.delete()
}
