package suite

import "testing"

// TestCommandsOfAllNodes has the tests whose commands look at all nodes. They run beside each other and no other test: a node that is away, or
// a volume that can't be published, would hold up their answers.
func TestCommandsOfAllNodes(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"Gate":           testGate,
		"Receipts":       testReceipts,
		"Recipes":        testRecipes,
		"RestartInPlace": testRestartInPlace,
		"Rollout":        testRollout,
		"RolloutPage":    testRolloutPage,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}
