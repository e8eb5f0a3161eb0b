package volume

import (
	"hash/fnv"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// ParseShare parses a value of RolloutAnnotation, such as 10%. "" is 100. An invalid value is 0 with false.
func ParseShare(text string) (percent int, ok bool) {
	if text == "" {
		return 100, true
	}
	digits, ok := strings.CutSuffix(text, "%")
	percent, err := strconv.Atoi(digits)
	if !ok || err != nil || percent < 0 || percent > 100 || strconv.Itoa(percent) != digits {
		return 0, false
	}
	return percent, true
}

// RolloutPlace returns the smallest share, 1 to 100, with which a pod takes changes. It is the same for all objects.
func RolloutPlace(pod types.UID) int {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(pod))
	return int(hash.Sum64()%100) + 1
}
