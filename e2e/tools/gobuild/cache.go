package gobuild

import (
	"fmt"
	"os"
	"path/filepath"
)

// CacheDir returns where built programs are kept between runs: $REFVOL_CACHE, else
// refvol in the user's cache directory. It is outside the checkout, so a clean
// checkout does not build everything again.
func CacheDir() (string, error) {
	if dir := os.Getenv("REFVOL_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache directory (or set REFVOL_CACHE): %w", err)
	}
	return filepath.Join(dir, "refvol"), nil
}
