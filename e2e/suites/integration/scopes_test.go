package integration

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/refvol/refvol/e2e/tools/faultproxy"
	"github.com/refvol/refvol/e2e/tools/harness"
)

const (
	scopedAccounts = 30
	// deadAccount is the number of the account whose token is refused.
	deadAccount = 7
	// scopedCalm is the time between two resets: pauses that concern what works are short
	// again after it, those of what fails have grown.
	scopedCalm = 16 * time.Second
)

// accountsNode is a plugin behind a proxy that reads with the tokens of many accounts. Each
// has a pod with a volume of a ConfigMap and one of a Secret.
type accountsNode struct {
	*podNode
	behind              *proxied
	configMaps, secrets []*harness.Volume
	writes              int
	// recovered is how long the ConfigMaps of the accounts took to be current after each
	// reset, updated how long each single change took.
	recovered, updated []time.Duration
}

func scopedObject(i int) string { return fmt.Sprint("settings-", i) }

func newAccountsNode(t *testing.T) *accountsNode {
	t.Helper()
	behind := newProxiedAs(t, componentAccount(t, "pod-identity"), faultproxy.Options{}, "--identity=pod", "--resync-interval=10s")
	n := &accountsNode{podNode: &podNode{&acrossNode{node: behind.node}}, behind: behind}
	members := group("system:serviceaccounts:" + n.namespace)
	allow(t, n.namespace, readers("configmap"), members)
	allow(t, n.namespace, readers("secret"), members)
	for i := range scopedAccounts {
		n.configMap(scopedObject(i), map[string]string{"key": "0"})
		n.secret(scopedObject(i), map[string]string{"key": "0"})
		configMap := n.own("configmap", scopedObject(i), fmt.Sprint("account-", i))
		secret := *configMap
		secret.Name, secret.Attributes = "secret", map[string]string{"secret": scopedObject(i)}
		n.configMaps, n.secrets = append(n.configMaps, configMap), append(n.secrets, &secret)
	}
	for _, v := range slices.Concat(n.configMaps, n.secrets) {
		n.publishes(v, soon)
	}
	return n
}

// breakDown has Secrets fail and the token of one account be refused.
func (n *accountsNode) breakDown() {
	n.behind.proxy.InjectFor(faultproxy.SecretsFail, func(r faultproxy.Request) bool { return r.Resource == "secrets" })
	dead := faultproxy.Credential(n.configMaps[deadAccount].Token)
	n.behind.proxy.InjectFor(faultproxy.Unauthorized, func(r faultproxy.Request) bool { return r.Credential == dead })
}

// write changes the ConfigMap of an account.
func (n *accountsNode) write(i int) (value string) {
	n.t.Helper()
	n.writes++
	value = fmt.Sprint(n.writes)
	n.configMap(scopedObject(i), map[string]string{"key": value})
	return value
}

// reset breaks all connections and changes the ConfigMap of each account but the dead one.
func (n *accountsNode) reset() (begin time.Time, values []string) {
	n.t.Helper()
	begin = time.Now()
	n.behind.proxy.ResetConnections()
	values = make([]string, scopedAccounts)
	for i := range values {
		if i != deadAccount {
			values[i] = n.write(i)
		}
	}
	return begin, values
}

// recovers waits until what reset has written shows.
func (n *accountsNode) recovers(begin time.Time, values []string) {
	n.t.Helper()
	for i, value := range values {
		if i != deadAccount {
			n.arrives(n.configMaps[i], "key", value, soon)
		}
	}
	n.recovered = append(n.recovered, time.Since(begin))
}

// update changes the ConfigMap of an account and measures how long it takes to show.
func (n *accountsNode) update(i int) {
	n.t.Helper()
	n.updated = append(n.updated, n.arrives(n.configMaps[i], "key", n.write(i), soon))
}

// allCurrent writes all objects, and waits until all show.
func (n *accountsNode) allCurrent(within time.Duration) {
	n.t.Helper()
	for i := range scopedAccounts {
		value := n.write(i)
		n.secret(scopedObject(i), map[string]string{"key": value})
	}
	harness.Eventually(n.t, within, func() error {
		var errs []error
		for i := range scopedAccounts {
			want := fmt.Sprint(n.writes - scopedAccounts + 1 + i)
			for _, v := range []*harness.Volume{n.configMaps[i], n.secrets[i]} {
				if got, err := n.content(v, "key"); err != nil || got != want {
					errs = append(errs, fmt.Errorf("account %d: %v shows %q, %v, want %q", i, v.Attributes, got, err, want))
				}
			}
		}
		return errors.Join(errs...)
	})
}

// TestFailuresStayInTheirScope has one account's token be refused, and Secrets fail. The
// ConfigMaps of the other accounts are updated as fast as those of a second plugin without
// these faults, also after all connections of both have broken.
func TestFailuresStayInTheirScope(t *testing.T) {
	t.Parallel()
	well, ill := newAccountsNode(t), newAccountsNode(t)
	both := []*accountsNode{well, ill}
	ill.breakDown()
	ill.behind.proxy.ResetConnections()
	well.behind.proxy.ResetConnections()
	for range harness.Scaled(2, 3) { // all connections break
		during(t, scopedCalm, func() {})
		wellBegin, wellValues := well.reset()
		illBegin, illValues := ill.reset()
		well.recovers(wellBegin, wellValues)
		ill.recovers(illBegin, illValues)
		for i := range scopedAccounts {
			if i == deadAccount {
				continue
			}
			for _, n := range both {
				n.update(i)
			}
		}
	}
	refused := 0
	for _, r := range ill.behind.requests() {
		if r.Fault != faultproxy.None && (r.Verb == "WATCH" || r.Verb == "LIST") {
			refused++
		}
	}
	without, with := percentile(well.updated, 50), percentile(ill.updated, 50)
	t.Logf("%d requests refused; an update takes %s, without the faults %s; after resets %v, without the faults %v",
		refused, with, without, ill.recovered, well.recovered)
	if refused < scopedAccounts {
		t.Errorf("%d requests were refused: too few to mean anything", refused)
	}
	if with > 3*without+200*time.Millisecond {
		t.Errorf("an update takes %s, and %s without the faults", with, without)
	}
	if without, with := total(well.recovered), total(ill.recovered); with > 2*without+time.Second {
		t.Errorf("after the resets it takes %s in all until all is current, and %s without the faults", with, without)
	}

	ill.behind.heal()
	ill.allCurrent(healed)
	for _, n := range both {
		for _, v := range slices.Concat(n.configMaps, n.secrets) {
			n.mustUnpublish(v)
		}
		n.wantNothingLeft()
	}
}

func total(all []time.Duration) (sum time.Duration) {
	for _, d := range all {
		sum += d
	}
	return sum
}
