"""What deploy/ holds, checked without the engines that it is for."""
